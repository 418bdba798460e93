"""What the processor can do: the only place in which crafting asks, always before it uses an instruction set.

``ONEDNN_MAX_CPU_ISA`` (or ``DNNL_MAX_CPU_ISA``) and ``ATEN_CPU_CAPABILITY``, with which users and CI cap the libraries
below PyTorch, count as much as the hardware does.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

_TIMEOUT = 60.0  # seconds
_TRIAL = Path(__file__).with_name("_trial.py")
_ONEDNN = torch.ops.mkldnn
_CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITHOUT_BFLOAT16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")


def advertises_bfloat16() -> bool:
    """True if the processor claims instructions for products in bfloat16 and no cap forbids them."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16")) and _cap() not in _WITHOUT_BFLOAT16


def packs(dtype: torch.dtype) -> bool:
    """True if oneDNN can multiply with packed weights of a type; for bfloat16 it needs AVX-512."""
    if not (torch._C._has_mkldnn and hasattr(_ONEDNN, "_linear_pointwise")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and _ONEDNN._is_mkldnn_bf16_supported())


@cache
def trial() -> float:
    """The speed-up of bfloat16 over float32 on this processor, measured in a subprocess; 0 if the subprocess died.

    Some virtual machines advertise AMX and kill the first process that uses it, and some processors have bfloat16
    instructions that are slower than float32. The ratio is far above or far below the threshold of ``auto``, so that
    the choice does not change from day to day.
    """
    try:
        command = [sys.executable, "-P", str(_TRIAL)]  # -P: files beside it must not shadow modules of the same name
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0


def _cap() -> str:
    """The instruction set that oneDNN may use at most; empty without a cap."""
    return next((os.environ[name].upper() for name in _CAPS if os.environ.get(name)), "")


def facts() -> dict[str, str | bool]:
    """The capabilities in force, for records and benchmarks."""
    return {
        "aten": torch.backends.cpu.get_cpu_capability(),
        "onednn cap": _cap() or "none",
        "bfloat16 instructions": advertises_bfloat16(),
        "packs bfloat16": packs(torch.bfloat16),
    }
