"""The numbers that attacks compute with: gradients need few digits, judging needs float32 and always gets it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch

Arithmetic = Literal["auto", "float32", "bfloat16"]

_chosen: ContextVar[Arithmetic] = ContextVar("arithmetic", default="auto")


@contextmanager
def arithmetic(name: Arithmetic) -> Iterator[None]:
    """Craft with these numbers inside the context: ``float32``, ``bfloat16``, or ``auto``, what the hardware is for.

    It concerns crafting on float32 models only; whether a point fools the model is always decided in float32.
    """
    if name not in get_args(Arithmetic):
        raise ValueError(f"arithmetic is {name!r} but it must be one of {', '.join(get_args(Arithmetic))}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen(device: torch.device) -> torch.dtype:
    """The type attacks compute with on a device."""
    name = _chosen.get()
    if name == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware says that it multiplies bfloat16; a timing could choose otherwise from day to day."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    able = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
