"""The tensors of a checkpoint: several state dictionaries in one file, each with a prefix."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.records.snapshot import Tensors


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors with a prefix before their names."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors whose names have the prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): t for name, t in tensors.items() if name.startswith(f"{prefix}/")}


def optimizer_tensors(optimizer: Optimizer) -> Tensors:
    """The state of an optimizer as named tensors, without its settings, which the recipe holds."""
    state = optimizer.state_dict()["state"]
    return {f"{key}/{name}": torch.as_tensor(value) for key, values in state.items() for name, value in values.items()}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state of an optimizer from named tensors."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
