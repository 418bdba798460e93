"""What a call from Python is given, checked: threats, seeds, samples and the device of a model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from holdfast.data import DataSet, EvaluationSet, load_test
from holdfast.data.from_torch import evaluation_set
from holdfast.geometry import Threat
from holdfast.recipes.build import build_threat
from holdfast.rng import Rng


def threats_of(given: Threat | str | Sequence[Threat | str]) -> tuple[Threat, ...]:
    """One or several threats, each given as such or as text; at least one, and each once."""
    each = [given] if isinstance(given, str | Threat) or not isinstance(given, Sequence) else given
    found = [one if isinstance(one, Threat) else build_threat(one, "threat") for one in each]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"threat is {given!r} but at least one is needed, and each once, e.g. 'linf:8/255'")
    return tuple(found)


def seed_of(rng: int | Rng) -> int:
    """The seed of a number or a source of random numbers."""
    seed = rng.seed if isinstance(rng, Rng) else rng
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"rng is {rng!r} but must be a seed, a whole number from 0, or an Rng")
    return seed


def check_labels_apart(x: Any, y: Any) -> None:
    """Refuse labels beside a data set, which has its own."""
    if y is not None and isinstance(x, str | DataSet | EvaluationSet):
        what = f"{x!r}, the name of a data set" if isinstance(x, str) else "a data set"
        raise ValueError(f"x is {what}, which has labels of its own; leave y out")


def samples_of(x: Any, y: Any, samples: int | None, threats: Sequence[Threat]) -> EvaluationSet:
    """The samples to evaluate on; samples outside the box of a threat are refused."""
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise ValueError(f"samples is {samples!r} but must be a number of samples, at least 1, or None for all")
    check_labels_apart(x, y)
    if isinstance(x, str):
        found = load_test(x, samples=samples)
    elif isinstance(x, DataSet | EvaluationSet):
        found = EvaluationSet(x.name, x.test, x.classes)
    else:
        found = evaluation_set(x, y)
    found = EvaluationSet(found.name, found.test.spread(samples), found.classes)
    for threat in threats:
        threat.check(found.test.x.float() / 255 if found.test.x.dtype == torch.uint8 else found.test.x)
    return found


def device_of(model: nn.Module | None) -> torch.device:
    """The device of a model's tensors."""
    tensors = [] if model is None else [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
