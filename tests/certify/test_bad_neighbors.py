import re

import pytest
import torch

from holdfast.certify.neighbors import Neighbors

POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
LABELS = torch.tensor([0, 1, 0, 1])


def given(points=POINTS, labels=LABELS, **options):
    return Neighbors(points=points, labels=labels, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 2}, "k is 2 but must be odd"),
        ({"k": 0}, "k is 0 but must be odd"),
        ({"k": 5}, "there are 4 points but k = 5 needs 6"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "one label"),
        ({"labels": torch.tensor([0, 1])}, "give 4 integers from 0"),
        ({"labels": torch.tensor([0, 1, -1, 0])}, "give 4 integers from 0"),
        ({"points": torch.tensor([[0.0, float("nan")]]).repeat(4, 1)}, "points holds NaN"),
        ({"points": torch.zeros(4, 2, dtype=torch.int64)}, "must be floating point"),
        ({"near": 0}, "near is 0"),
        ({"box": (0.0, 0.5)}, "points spans"),
        ({"box": (1.0, 0.0)}, "is empty"),
        ({"matrix": torch.eye(3)}, "need (2, 2)"),
        ({"matrix": torch.tensor([[1.0, 2.0], [0.0, 1.0]])}, "not symmetric"),
        ({"matrix": torch.tensor([[1.0, 2.0], [2.0, 1.0]])}, "eigenvalue -1"),
        ({"matrix": torch.tensor([[1.0, 0.0], [0.0, float("nan")]])}, "matrix holds NaN"),
    ],
)
def test_what_cannot_be_certified_is_refused_in_one_sentence(options, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        given(**options).predict(POINTS)
    assert "\n" not in str(caught.value)


def test_inputs_that_do_not_fit_are_refused():
    certify = given(box=(0.0, 1.0))
    for x, said in (
        (torch.zeros(1, 3), "samples of shape"),
        (torch.full((1, 2), float("inf")), "x holds NaN"),
        (torch.full((1, 2), 2.0), "x spans"),
    ):
        with pytest.raises(ValueError, match=said):
            certify.predict(x)
