"""Processor capabilities: asked before they are used, with the caps of the environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.crafting import processor

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
BFLOAT16_WITHOUT_AVX512 = """
import torch
from torch import nn
from holdfast import PGD, LInf, Rng, Threat, arithmetic
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
x, y = torch.rand(8, 1, 8, 8), torch.arange(8) % 4
with arithmetic("bfloat16"):
    x_adv = PGD(threat=Threat(LInf(), 0.1), steps=40, keep="last")(model, x, y, rng=Rng(0))
print((x_adv - x).abs().amax().item())
"""


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize(
    ("cap", "allowed"),
    [("AVX2", False), ("avx2", False), ("AVX512_CORE", False), ("AVX512_CORE_BF16", True), ("ALL", True), ("", True)],
)
def test_caps_on_onednn_count(variable: str, cap: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, cap)
    assert processor.advertises_bfloat16() is allowed


def test_no_packing_without_onednn_or_for_other_types(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not processor.packs(torch.float64)
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert not processor.packs(torch.float32)


def test_packs_says_what_onednn_does() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.zeros(512, 512, dtype=dtype)
        if processor.packs(dtype):
            torch.ops.mkldnn._reorder_linear_weight(weight, None)
        elif torch._C._has_mkldnn:
            with pytest.raises(RuntimeError, match="bf16 path needs the cpu support"):
                torch.ops.mkldnn._reorder_linear_weight(weight, None)


def test_bfloat16_attacks_work_without_avx512() -> None:
    """In a process of its own: libraries read the caps when they are loaded."""
    done = subprocess.run(
        [sys.executable, "-c", BFLOAT16_WITHOUT_AVX512], env=os.environ | AVX2, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.1, abs=1e-6)


def test_the_trial_measures_a_speedup_and_survives_whatever_the_process_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert processor.trial.__wrapped__() > 0
    for name, text in (("dies", "import os; os.kill(os.getpid(), 4)"), ("lies", "print('much')"), ("ends", "exit(3)")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(processor, "_TRIAL", tmp_path / name)
        assert processor.trial.__wrapped__() == 0
    monkeypatch.setattr(processor.sys, "executable", str(tmp_path / "no python"))
    assert processor.trial.__wrapped__() == 0


def test_facts_name_what_is_in_force() -> None:
    assert processor.facts()["aten"] == torch.backends.cpu.get_cpu_capability()
