"""The states of torch's global random number generators, which e.g. dropout uses."""

from collections.abc import Mapping

import torch
from torch import Tensor


def generators() -> dict[str, Tensor]:
    """The states by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def set_generators(states: Mapping[str, Tensor]) -> None:
    """Restore the generators to these states."""
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state for name, state in states.items() if name.startswith("cuda")])
