"""The numbers that attacks compute with: gradients need few digits, judging needs float32 and always gets it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import torch

Arithmetic = Literal["auto", "float32", "bfloat16"]

_PAYS = 1.3  # times as fast as float32 from which on bfloat16 is worth its rounding
_PATIENCE = 60.0  # seconds
_TRIAL = Path(__file__).with_name("_trial.py")

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
    if name == "bfloat16" and device.type == "cpu" and _advertised() and trial() == 0:
        raise ValueError(
            "bfloat16 was asked for but a trial of it died: this processor advertises instructions that it lacks; "
            "choose float32, or start Python with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )
    if name == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 pays on a device: the hardware says that it multiplies it and, on processors, a trial agrees."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _advertised() and trial() >= _PAYS


def _advertised() -> bool:
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


@cache
def trial() -> float:
    """How many times as fast as float32 bfloat16 is on this processor, tried in a process of its own; 0 if that died.

    Virtual machines were seen that advertise AMX and kill the first process that uses it, and processors that have
    bfloat16 without AMX and are slower with it. With it the ratio is far above the bar, without far below,
    so that the choice does not change from day to day.
    """
    try:
        command = [sys.executable, "-P", str(_TRIAL)]  # -P: its neighbours must not pass for modules of the same name
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0
