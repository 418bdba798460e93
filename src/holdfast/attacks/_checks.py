"""Refuse inputs and settings that an attack cannot work with."""

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.contracts import Rows
from holdfast.geometry import Threat
from holdfast.settings import check_tensors


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse a setting that is not among the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r} but it must be one of {', '.join(allowed)}")


def check_arguments(model: Any, x: Any, y: Any, rng: Any) -> None:
    """Refuse arguments of an attack that are of another type."""
    if not callable(model):
        raise ValueError(f"the model is a {type(model).__name__}; give a torch.nn.Module that returns logits")
    check_tensors(x=x, **{} if isinstance(y, Rows) else {"y": y})
    if not hasattr(rng, "fork"):
        raise ValueError(f"rng is {rng!r} but must be an Rng, which keys random numbers by sample; write rng=Rng(0)")


def differences(model: Any, x: Tensor) -> str:
    """What is unlike between inputs and the parameters of a model, which torch explains at length; empty if nothing."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    for name in ("dtype", "device"):
        own, others = getattr(x, name), {getattr(one, name) for one in parameters}
        if parameters and own not in others:
            return f"x has {name} {own} but the model {others.pop()}; move one of them, e.g. with x.to(...)"
    return ""


def check(x: Tensor, rows: Rows, threat: Threat, targeted: bool = False) -> None:
    """Refuse inputs and labels that do not match or are no class indices, missing targets, inputs outside the box."""
    if len(x) != len(rows):
        raise ValueError(f"x has {len(x)} samples and y {len(rows)}; they must match")
    if rows.y.dtype != torch.int64 or rows.y.ndim != 1:
        raise ValueError(
            f"y has shape {tuple(rows.y.shape)} and type {rows.y.dtype} but class indices (b,) of type int64 are needed"
        )
    if targeted and "target" not in rows.given:
        raise ValueError(
            "a targeted attack needs a class to reach for every sample; "
            'pass Rows(y, index, {"target": classes}) instead of labels'
        )
    for name, value in {"index": rows.index, **rows.given}.items():
        if len(value) != len(rows):
            raise ValueError(f"y has {len(rows)} samples and the rows' {name} {len(value)}; they must match")
    threat.check(x)


def check_labels(rows: Rows, classes: int, targeted: bool = False) -> None:
    """Refuse labels and targets for which the model has no logit, and targets that are the true label."""
    for name, labels in [("labels", rows.y), *([("targets", rows["target"])] if targeted else [])]:
        if len(labels) and (labels.min() < 0 or labels.max() >= classes):
            span = f"{int(labels.min())}..{int(labels.max())}"
            raise ValueError(f"{name} span {span} but the model has classes 0..{classes - 1}")
    if targeted and (same := int((rows["target"] == rows.y).sum())):
        raise ValueError(f"{same} targets are the true label; give every sample a class that it does not have")


def check_outputs(rows: Rows, logits: Tensor, targeted: bool = False) -> None:
    """Refuse labels without a logit, and outputs that are not logits: gradients of them would mislead."""
    if logits.shape[1] < 2:
        raise ValueError("the model has one output but one for each class is needed; return the logits 0 and z")
    check_labels(rows, logits.shape[1], targeted)
    if len(logits) and not logits.isfinite().any():
        raise ValueError("the model gives NaN or infinite outputs; check its weights and its normalization")
    differentiable = logits.requires_grad or not torch.is_grad_enabled()  # a read-out of features need not be
    if differentiable and probabilities(logits):
        raise ValueError(
            "the model seems to give probabilities (each row adds up to 1) but attacks need logits, else gradients "
            "vanish and it looks more robust than it is; leave its softmax out"
        )


def probabilities(logits: Tensor) -> bool:
    """True if outputs look like probabilities; the tolerance is that of bfloat16 where it excludes coincidence."""
    allowed = 1e-2 if len(logits) >= 4 else 1e-5
    return len(logits) > 0 and bool((logits >= 0).all() and (logits.sum(1) - 1).abs().max() <= allowed)


def check_targets(targets: int | None, classes: int) -> int:
    """The number of wrong classes to aim at, None being all; refuses more than the model has."""
    wrong = classes - 1
    if targets is not None and not 1 <= targets <= wrong:
        raise ValueError(
            f"targets is {targets} but a model with {classes} classes has {wrong} wrong ones; "
            f"give a number from 1 to {wrong}"
        )
    return wrong if targets is None else targets


def norm_of(attack: str, threat: Threat, allowed: tuple[str, ...]) -> None:
    """Refuse a norm for which the attack has no form."""
    if threat.norm.name not in allowed:
        raise ValueError(
            f"{attack} has no form for the norm {threat.norm.name}; give it a threat in {' or '.join(allowed)}"
        )


def between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside [least, most], and NaN."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value} but it must be in [{least:g}, {most:g}]")


def at_least_one(**counts: int) -> None:
    """Refuse counts below one."""
    if min(counts.values()) < 1:
        given = " and ".join(
            f"{name} {'is ' * (place == 0)}{count}" for place, (name, count) in enumerate(counts.items())
        )
        raise ValueError(f"{given} but an attack needs at least one of each")
