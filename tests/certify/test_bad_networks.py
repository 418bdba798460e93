"""Networks and settings that bounds cannot handle are refused in one sentence."""

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.certify.crown import CROWN
from holdfast.geometry import NORMS
from holdfast.models.classifier import Classifier, PerImage
from holdfast.rng import Rng


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x.flatten(1))


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(4, 2))


def hooked() -> nn.Module:
    model = chain()
    model.register_forward_hook(lambda *_: None)
    return model


def infinite() -> nn.Module:
    model = chain()
    model[1].weight.data[0] = nan  # type: ignore[index, union-attr]
    return model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (chain(nn.Tanh()), r"cannot handle Tanh \(1\); supported are Linear, Conv1d"),
        (chain(Norm()), r"cannot handle normalize \(in Norm\); supported are"),
        (Classifier(chain(), nn.Linear(2, 2), PerImage()), "standardized by their own mean and deviation; train with"),
        (hooked(), "has hooks or a forward pass that is not its class's"),
        (chain().half(), "float16 weights"),
        (infinite(), "NaN or infinite weights"),
        (chain(nn.LeakyReLU(1.5)), "negative slope 1.5"),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.AvgPool2d(1, divisor_override=-2)), "its coefficients are negative"),
        (chain(nn.BatchNorm1d(4, track_running_stats=False)), "a sample depends on its batch"),
        (chain(Product()), "both depend on the input"),
        (nn.Sequential(nn.Linear(4, 1)), "has 1 output"),
        (nn.Sequential(nn.Unflatten(1, (2, 2))), "logits of shape"),
    ],
)
def test_networks_are_refused_by_what_is_wrong_with_them(model: nn.Module, sentence: str, rng: Rng) -> None:
    with pytest.raises(ValueError, match=sentence):
        CROWN(model=model.eval())(torch.full((2, 4), 0.5), rng=rng)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm": NORMS["l1"]}, "the norm is l1 but linear bounds are for linf and l2"),
        ({"box": (1.0, 0.0)}, "the lower one first"),
        ({"radii": (0.1, -1.0)}, "radii is"),
        ({"radii": (inf,)}, "radii is"),
        ({"tolerance": 0.0}, "tolerance is 0"),
        ({"alpha_steps": -1}, "alpha_steps is -1"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        CROWN(model=nn.Identity(), **settings)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (torch.full((1, 4), 2.0), r"x spans \[2, 2\] but the box is \[0, 1\]"),
        (torch.full((1, 4), nan), "NaN or infinite"),
        (torch.ones(1, 4, dtype=torch.int64), "int64"),
    ],
)
def test_wrong_inputs_are_refused(x: Tensor, sentence: str, rng: Rng) -> None:
    with pytest.raises(ValueError, match=sentence):
        CROWN(model=chain())(x, rng=rng)
