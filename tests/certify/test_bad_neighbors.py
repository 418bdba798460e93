import re

import pytest
import torch

from holdfast import L2, LInf
from holdfast.certify.neighbors import Neighbors

POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
LABELS = torch.tensor([0, 1, 0, 1])


def classifier(points=POINTS, labels=LABELS, **options):
    return Neighbors(points=points, labels=labels, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"k": k}, f"k is {k!r} but must be an odd whole number") for k in (2, 0, -1, 1.0, "1", True, None)),
        ({"k": 5}, "there are 4 points but k = 5 needs 6"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "same label"),
        ({"labels": torch.tensor([0, 1])}, "give 4 integers from 0"),
        ({"labels": torch.tensor([0, 1, -1, 0])}, "give 4 integers from 0"),
        ({"points": torch.tensor([[0.0, float("nan")]]).repeat(4, 1)}, "points holds NaN"),
        ({"labels": LABELS == 0}, "give 4 integers from 0"),
        ({"labels": LABELS.numpy()}, "labels is a ndarray but must be a tensor; give torch.as_tensor(labels)"),
        ({"points": torch.zeros(4, 2, dtype=torch.int64)}, "must be floating point"),
        ({"points": POINTS.numpy()}, "points is a ndarray but must be a tensor; give torch.as_tensor(points)"),
        ({"points": 1e200 * POINTS.double()}, "points reaches 1e+200, whose square overflows"),
        ({"points": 1e-200 * POINTS.double()}, "points span 1e-200, whose square underflows"),
        *(({"near": near}, f"near is {near!r} but the bound of k = 1 needs") for near in (0, 1.5, "1", True)),
        ({"near": 1, "k": 3}, "near is 1 but the bound of k = 3 needs a whole number of points, 2 or more"),
        ({"box": (0.0, 0.5)}, "points spans"),
        ({"box": (1.0, 0.0)}, "is empty"),
        *(({"box": box}, f"box is {box!r} but must be two numbers") for box in ((0, 1, 2), (0,), 1.0, "01", (None, 1))),
        ({"matrix": torch.eye(3)}, "need (2, 2)"),
        ({"matrix": torch.tensor([[1.0, 2.0], [0.0, 1.0]])}, "not symmetric"),
        ({"matrix": torch.tensor([[1.0, 2.0], [2.0, 1.0]])}, "eigenvalue -1"),
        ({"matrix": torch.eye(2).numpy()}, "matrix is a ndarray but must be a tensor"),
        ({"matrix": 1j * torch.eye(2)}, "matrix holds complex numbers"),
        ({"matrix": torch.tensor([[1.0, 0.0], [0.0, float("nan")]])}, "matrix holds NaN"),
    ],
)
def test_invalid_settings_are_refused_in_one_sentence(options, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        classifier(**options).predict(POINTS)
    assert "\n" not in str(caught.value)


def test_invalid_inputs_are_refused():
    certify = classifier(box=(0.0, 1.0))
    for x, message in (
        (torch.zeros(1, 3), "samples of shape"),
        (torch.full((1, 2), float("inf")), "x holds NaN"),
        (torch.full((1, 2), 2.0), "x spans"),
        (POINTS.numpy(), "x is a ndarray but must be a tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            certify.predict(x)


def test_the_norm_is_l2_and_cannot_be_changed():
    with pytest.raises(TypeError, match="norm"):
        classifier(norm=LInf())
    assert classifier().norm == L2()
