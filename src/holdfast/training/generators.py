"""The states of torch's own generators, which models with dropout draw from."""

from collections.abc import Mapping

import torch
from torch import Tensor


def generators() -> dict[str, Tensor]:
    """The states by name."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def set_generators(states: Mapping[str, Tensor]) -> None:
    """Put the generators back into these states."""
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state for name, state in states.items() if name.startswith("cuda")])
