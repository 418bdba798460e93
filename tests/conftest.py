"""Shared by all tests: one thread, reproducible hypothesis examples, an rng, a tiny study, the command line."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from holdfast import data
from holdfast.data import DataSet
from holdfast.rng import Rng
from holdfast.run import cli
from tiny_study import TINY, toy

# some virtual machines advertise AMX and kill a process that uses it; torch reads this at its first convolution
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
torch.set_num_threads(1)
settings.register_profile("holdfast", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("holdfast")


@pytest.fixture(scope="session")  # an Rng has no state, and hypothesis refuses function-scoped fixtures
def rng() -> Rng:
    return Rng(0)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all results of ``torch.addmm`` in a test, a bound on memory that Python cannot measure."""
    sizes: list[int] = []
    multiply = torch.addmm

    def watched(*args: Tensor, **options: float) -> Tensor:
        product = multiply(*args, **options)  # type: ignore[call-overload]
        sizes.append(product.numel())
        return product

    monkeypatch.setattr(torch, "addmm", watched)
    return sizes


@pytest.fixture(autouse=True, scope="session")
def _one_process() -> Iterator[None]:
    """Studies run in this process, where tests replace functions; one test asks for more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.run.parallel.cores", lambda: 1)
        yield


@pytest.fixture(autouse=True, scope="session")
def _frequent_checkpoints() -> Iterator[None]:
    """Short trainings write checkpoints within epochs too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.training.loop.SAVE_EVERY", 2)
        yield


@pytest.fixture(autouse=True, scope="session")
def _same_arithmetic_everywhere() -> Iterator[None]:
    """Use bfloat16 only in tests that ask for it, so that results do not depend on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.crafting.arithmetic.has_bfloat16", lambda device: False)
        yield


Call = Callable[..., SimpleNamespace]


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return data.load("digits", valid=0.1, seed=0)


@pytest.fixture(scope="session")
def toys() -> DataSet:
    return toy()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """``call("run", recipe)`` runs a command and returns its exit code, stdout and stderr."""

    def run(*args: object) -> SimpleNamespace:
        monkeypatch.setenv("HOLDFAST_TRACEBACK", "")
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, args)])
        capsys.readouterr()
        code = called()
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run


def called() -> int:
    """Run the command line with the current sys.argv; returns its exit code."""
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny study after ``holdfast run``; tests only read it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.toml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["holdfast", "run", str(folder / "tiny.toml"), "--out", str(folder / "out")])
        assert called() == 0
    return folder


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> SimpleNamespace:
    """A copy of the finished study that a test may change."""
    shutil.copytree(finished, tmp_path / "study")
    return SimpleNamespace(recipe=tmp_path / "study" / "tiny.toml", out=tmp_path / "study" / "out")
