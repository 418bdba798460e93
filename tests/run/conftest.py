"""A tiny study, trained and evaluated once, and the command line called in this process."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from workbench import TINY, toy

from holdfast import data
from holdfast.data import DataSet
from holdfast.run import cli

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
    """``call("run", recipe)`` gives exit code, stdout and stderr."""

    def run(*args: object) -> SimpleNamespace:
        monkeypatch.setenv("HOLDFAST_TRACEBACK", "")
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, args)])
        capsys.readouterr()
        code = called()
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    return run


def called() -> int:
    """The exit code of the command line with today's sys.argv."""
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
    """A copy of the finished study to do as one likes with."""
    shutil.copytree(finished, tmp_path / "study")
    return SimpleNamespace(recipe=tmp_path / "study" / "tiny.toml", out=tmp_path / "study" / "out")
