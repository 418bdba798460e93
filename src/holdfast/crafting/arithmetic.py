"""The floating-point type of crafting: gradients need few digits; judging needs float32 and always gets it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Literal, TypeVar, get_args

import torch

from holdfast.crafting.processor import advertises_bfloat16, trial

Arithmetic = Literal["auto", "float32", "bfloat16"]
Value = TypeVar("Value")

_WORTHWHILE = 1.3  # speed-up from which on bfloat16 is worth its rounding

_chosen: ContextVar[Arithmetic] = ContextVar("arithmetic", default="auto")


@contextmanager
def within(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a variable within the context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def arithmetic(name: Arithmetic) -> AbstractContextManager[None]:
    """Craft in ``float32``, in ``bfloat16``, or in what is faster on the hardware (``auto``), within the context.

    Only crafting on float32 models is affected; whether an input fools the model is always decided in float32.
    """
    if name not in get_args(Arithmetic):
        raise ValueError(f"arithmetic is {name!r} but it must be one of {', '.join(get_args(Arithmetic))}")
    return within(_chosen, name)


def chosen(device: torch.device) -> torch.dtype:
    """The type in which attacks compute on a device."""
    name = _chosen.get()
    if name == "bfloat16" and device.type == "cpu" and advertises_bfloat16() and trial() == 0:
        raise ValueError(
            "bfloat16 was asked for but a trial of it died: this processor advertises instructions that it lacks; "
            "choose float32, or start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )
    if name == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """True if bfloat16 pays: the hardware has instructions for it and, on processors, a trial finds it fast."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and advertises_bfloat16() and trial() >= _WORTHWHILE
