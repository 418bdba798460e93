"""The tensors of a checkpoint: state dictionaries and random number generators in one file, each with a prefix."""

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


def generators() -> dict[str, Tensor]:
    """The states of torch's global random number generators by device, which e.g. dropout uses."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def set_generators(states: Mapping[str, Tensor]) -> None:
    """Restore the generators to these states."""
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state for name, state in states.items() if name.startswith("cuda")])
