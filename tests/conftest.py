"""What every test shares: one thread, repeatable examples, a source of randomness."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from holdfast.rng import Rng

# virtual machines were seen that advertise AMX and kill the process that uses it; read at torch's first convolution
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
torch.set_num_threads(1)
settings.register_profile("holdfast", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("holdfast")


@pytest.fixture(scope="session")  # an Rng has no state, and hypothesis refuses fixtures made anew for each test
def rng() -> Rng:
    return Rng(0)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all products that are asked for while a test runs: torch allocates outside of Python's sight."""
    asked: list[int] = []
    multiply = torch.addmm

    def watched(*args: Tensor, **options: float) -> Tensor:
        found = multiply(*args, **options)  # type: ignore[call-overload]
        asked.append(found.numel())
        return found

    monkeypatch.setattr(torch, "addmm", watched)
    return asked


@pytest.fixture(autouse=True, scope="session")
def _same_arithmetic_everywhere() -> Iterator[None]:
    """Tests mean the same on every machine: lower precision only where a test asks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.models.arithmetic.has_bfloat16", lambda device: False)
        yield
