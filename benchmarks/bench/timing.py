"""Times that can be compared: everybody in turns in one process, medians, and what the machine was."""

import gc
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.peers import said
from holdfast.crafting import processor

SIDE = 2048
LEAST = 3  # turns that slow contestants are given

Call = Callable[[], object]


@dataclass
class Times:
    """Seconds per contestant, one number per turn, and the reasons of those who failed."""

    seconds: dict[str, list[float]]
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float:
        """The median time of a contestant."""
        return median(self.seconds[name])

    def ratio(self, name: str, to: str) -> dict[str, float]:
        """How many times longer ``name`` takes than ``to``: of the medians, and the range over the turns."""
        turns = [a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=True)]
        return {"ratio": self.median(name) / self.median(to), "lowest": min(turns), "highest": max(turns)}

    def fastest(self, among: Mapping[str, object] | set[str]) -> str | None:
        """The contestant with the smallest median."""
        return min((name for name in self.seconds if name in among), key=self.median, default=None)


def interleaved(contestants: Mapping[str, Call], repeats: int, *, seconds: float = math.inf) -> Times:
    """Time the contestants in turns, each turn beginning with another, after one call of each that is not counted.

    What slows the machine for a while then slows everybody; who fails in the first call takes no part. After so many
    ``seconds`` no further turn begins, but there are at least ``LEAST``.
    """
    times, deadline = Times({}), time.monotonic() + seconds
    for name, call in contestants.items():
        try:
            call()
            times.seconds[name] = []
        except Exception as error:  # a peer may fail in any way, and the others are still to be timed
            times.failed[name] = said(error)
    names = list(times.seconds)
    for turn in range(repeats):
        if turn >= LEAST and time.monotonic() > deadline:
            break
        gc.collect()
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            times.seconds[name].append(_seconds(contestants[name]))
    return times


def _seconds(call: Call) -> float:
    started = _now()
    call()
    return _now() - started


def _now() -> float:
    """With one thread the CPU time, which other load on the machine changes little."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def product(dtype: torch.dtype) -> Call:
    """A 2048-cubed matrix product, the yardstick of what the machine can do."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIDE, SIDE, generator=generator).to(dtype) for _ in range(2))
    out: Tensor = torch.empty(SIDE, SIDE, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


PRODUCT_FLOPS = 2 * SIDE**3


def peak_memory() -> int:
    """The most memory this process has held so far, in bytes.

    Linux hands the ru_maxrss of a parent down to its children, so the kernel's own mark is asked there.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
        if line is not None:
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Let the mark start anew from what is held now, where the kernel can: loading data must not hide what follows."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    flags = _cpu_flags()
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": torch.cpu.get_capabilities().get("cpu_name", platform.processor()),
        "in force": in_force(),
        "avx512": any(flag.startswith("avx512") for flag in flags),
        "bf16": sorted(flag for flag in flags if "bf16" in flag),
        "preload": [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":") if name],
        "load": round(os.getloadavg()[0], 2),
    }


def in_force() -> str:
    """The capabilities that the libraries may use, which can be fewer than the hardware has."""
    return ", ".join(f"{name} {value}" for name, value in processor.facts().items())


def _cpu_flags() -> list[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
