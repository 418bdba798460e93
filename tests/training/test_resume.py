"""A run stopped by an exception, SIGKILL or a full disk resumes and ends bit-identical."""

import errno
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.contracts import Batch, Needs, Rows, Terms
from holdfast.data import DataSet
from holdfast.data.augment import Augment, Flip, PadCrop
from holdfast.losses.classification import cross_entropy
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.models.classifier import adapt
from holdfast.recipes import assemble
from holdfast.recipes.tables.train import EMAConfig, OptimizerConfig, ScheduleConfig, SWAConfig
from holdfast.records import snapshot
from holdfast.rng import Rng
from holdfast.run import cli, session
from holdfast.training.job import Job
from tiny_study import at_method, bits, die, ended, in_child, run_job, start, toy_job

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")


@dataclass(eq=False)
class Proxies(nn.Module):
    """A method with parameters and a buffer: one proxy per class, and the number of calls."""

    needs = Needs()

    def __post_init__(self) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.arange(12.0).reshape(3, 4) / 12)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        self.calls += 1
        out = adapt(model).outputs(batch.x)
        entropy = cross_entropy(out, Rows(batch.y, batch.index)).mean()
        near = (out.features - self.proxies[batch.y]).square().mean()
        return Terms(entropy + near, {"cross_entropy": entropy, "proxies": near, "calls": self.calls})


def swap_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the encoder of all recipes with the one below."""
    known = assemble.kinds.member
    monkeypatch.setattr(
        assemble.kinds, "member", lambda kind, name: WithDropout if kind == "encoder" else known(kind, name)
    )


class WithDropout(nn.Module):
    """An encoder that uses torch's global generator."""

    def __init__(self, shape: tuple[int, ...], *, width: int = 4, channels: int = 1) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Dropout(0.5), nn.BatchNorm1d(width))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


MOMENTUM = {"optimizer": OptimizerConfig(name="sgd", lr=0.05, momentum=0.9, weight_decay=0.01)}
AUGMENT = Augment(pad_crop=PadCrop(pad=1), flip=Flip())
JOBS: dict[str, Callable[[Path], Job]] = {
    "plain": lambda folder: toy_job(folder),
    "tla": lambda folder: toy_job(folder, TLA(**at_method(pool=6, warmup=0.5))),
    "augmented": lambda folder: toy_job(folder, TLA(**at_method(pool=6)), augment=AUGMENT),
    "proxies": lambda folder: toy_job(folder, Proxies(), **MOMENTUM),  # type: ignore[arg-type]
    "one cycle": lambda folder: toy_job(
        folder, schedule=ScheduleConfig(name="one_cycle"), clip_norm=0.5, optimizer=OptimizerConfig(name="sgd", lr=0.5)
    ),
    "ema": lambda folder: toy_job(folder, TLA(**at_method(pool=6)), ema=EMAConfig(decay=0.8)),
    "swa": lambda folder: toy_job(folder, swa=SWAConfig(start=0.34)),
    "dropout": lambda folder: toy_job(folder, Plain()),
    "dropout swa": lambda folder: toy_job(folder, Plain(), swa=SWAConfig(start=0.34)),
}


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Job]:
    if request.param.startswith("dropout"):
        swap_encoder(monkeypatch)
    return JOBS[request.param]


@pytest.mark.parametrize("stops", [(1,), (2, 3, 5, 6, 9)])
def test_interrupted_run_is_bit_identical(
    tmp_path: Path, toys: DataSet, job: Callable[[Path], Job], stops: tuple[int, ...]
) -> None:
    whole = bits(run_job(job(tmp_path / "whole"), toys).folder)
    for stop in stops:
        torch.manual_seed(stop)  # another process has another generator state
        with pytest.raises(KeyboardInterrupt):
            run_job(job(tmp_path / "parts"), toys, stop_at=stop)
    assert bits(run_job(job(tmp_path / "parts"), toys).folder) == whole


def test_lines_logged_after_the_checkpoint_are_logged_once(tmp_path: Path, toys: DataSet) -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_job(toy_job(tmp_path / "a"), toys, stop_at=5)  # one step after the last checkpoint
        lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line["split"] == "train"] == [1, 2, 3, 4, 5]


def test_dropout_is_active_in_the_resume_test(tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without restoring the generator the weights differ, so the test above does test it."""
    swap_encoder(monkeypatch)
    whole = bits(run_job(toy_job(tmp_path / "whole"), toys).folder)
    with pytest.raises(KeyboardInterrupt):
        run_job(toy_job(tmp_path / "parts"), toys, stop_at=4)
    monkeypatch.setattr("holdfast.training.loop.set_generators", lambda states: None)
    assert bits(run_job(toy_job(tmp_path / "parts"), toys).folder)["last.safetensors"] != whole["last.safetensors"]


def test_parameters_of_a_method_are_not_shared_between_runs(tmp_path: Path, toys: DataSet) -> None:
    method = Proxies()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    first = run_job(toy_job(tmp_path / "a", method), toys)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    second = run_job(toy_job(tmp_path / "b", method), toys)  # type: ignore[arg-type]
    assert bits(first.folder) == bits(second.folder)
    assert '"calls": 9' in (first.folder / "metrics.jsonl").read_text().splitlines()[-2]


def short(folder: Path) -> Job:
    return toy_job(folder, epochs=2)


def at_call(nth: int, original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """The original function, except for its nth call."""
    count = itertools.count(1)
    return lambda *args, **named: (instead if next(count) == nth else original)(*args, **named)


def counted(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[], object]) -> int:
    """The number of calls of a function of os during the work."""
    calls, original = [], getattr(os, name)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, lambda *args: (calls.append(args), original(*args))[1])
        work()
    return len(calls)


def test_run_killed_during_any_write_resumes(tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL before the sync, before the rename and after the rename of each file."""
    files = counted(monkeypatch, "replace", lambda: run_job(short(tmp_path / "whole"), toys))
    reference = bits(tmp_path / "whole")
    assert files >= 8
    replaced = os.replace
    for nth in range(1, files + 1):
        folder = tmp_path / f"killed {nth}"

        def child(nth: int = nth, folder: Path = folder) -> None:
            if nth % 3 == 0:
                os.fsync = at_call(2 * nth - 1, os.fsync, lambda _: die())  # every other call syncs the folder
            elif nth % 3 == 1:
                os.replace = at_call(nth, os.replace, lambda *_: die())
            else:
                os.replace = at_call(nth, os.replace, lambda *args: (replaced(*args), die()))
            run_job(short(folder), toys)

        assert in_child(child) == -signal.SIGKILL
        for weights in folder.glob("[!.]*.safetensors"):
            snapshot.read(weights)  # raises if the file is incomplete
        assert bits(run_job(short(folder), toys).folder) == reference


def test_run_killed_at_20_random_moments_resumes(
    tmp_path: Path, tiny: Path, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL by another process during ``holdfast train``, twenty times."""

    def command(folder: Path) -> Callable[[], None]:
        def run() -> None:
            sys.argv = ["holdfast", "train", str(tiny), "--out", str(folder), "--method", "TLA", "--seed", "1"]
            sys.argv += ["--set", "train.batch=300", "--set", "train.validate_samples=9"]
            cli.main()

        return run

    monkeypatch.setattr(session, "load_for", lambda *_: digits)  # loading takes as long as training
    began = time.perf_counter()
    assert in_child(command(tmp_path / "whole")) == 0
    lasted = time.perf_counter() - began
    reference = bits(tmp_path / "whole" / "TLA" / "seed-1")
    chance, kills, midway, finished = random.Random(7), 0, 0, 0
    while kills < 20:
        folder = tmp_path / f"run {finished}"
        child = start(command(folder))
        time.sleep(lasted * chance.uniform(0, 0.9))
        os.kill(child, signal.SIGKILL)  # an ended child is a zombie until waited for, so its id is not reused
        code = ended(child)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        midway += (folder / "TLA" / "seed-1" / "checkpoint.safetensors").is_file()
        if code == 0:
            assert bits(folder / "TLA" / "seed-1") == reference
            finished += 1
    assert midway  # some were killed after the first checkpoint
    assert in_child(command(folder)) == 0
    assert bits(folder / "TLA" / "seed-1") == reference


class Torn:
    """A file that raises "no space left" after half of the data."""

    def __init__(self, file: IO[Any]) -> None:
        self._file = file

    def __enter__(self) -> "Torn":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        full()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def opened(nth: int, modes: tuple[str, ...]) -> Callable[..., Any]:
    """Path.open, except that the nth file opened for writing fails halfway."""
    count, original = itertools.count(1), Path.open

    def call(path: Path, mode: str = "r", **named: Any) -> Any:
        file = original(path, mode, **named)
        return Torn(file) if mode in modes and next(count) == nth else file

    return call


@pytest.mark.parametrize("operation", ["write", "append", "fsync", "replace"])
def test_full_disk_leaves_no_partial_file_and_the_run_resumes(
    tmp_path: Path, toys: DataSet, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    reference = bits(run_job(short(tmp_path / "whole"), toys).folder)
    for nth in (1, 3, 4, 6, 8):
        folder = tmp_path / f"full {nth}"
        with monkeypatch.context() as patch:
            if operation in ("write", "append"):
                patch.setattr(Path, "open", opened(nth, ("xb",) if operation == "write" else ("a",)))
            else:
                patch.setattr(os, operation, at_call(nth, getattr(os, operation), full))
            with pytest.raises(OSError, match="No space left on device"):
                run_job(short(folder), toys)
        assert not list(folder.glob(".*"))
        for weights in folder.glob("*.safetensors"):
            snapshot.read(weights)
        assert bits(run_job(short(folder), toys).folder) == reference


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "another"])
def test_damaged_checkpoint_is_refused(tmp_path: Path, toys: DataSet, damage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_job(toy_job(tmp_path / "a"), toys, stop_at=5)
    path = tmp_path / "a" / "checkpoint.safetensors"
    whole = bytearray(path.read_bytes())
    if damage == "another":
        snapshot.write(path, snapshot.read(path)[0], {})
    elif damage == "flipped":
        whole[-100] ^= 1
        path.write_bytes(whole)
    else:
        path.write_bytes(whole[: 0 if damage == "emptied" else -100])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is (damaged|not a checkpoint)") as refusal:
        run_job(toy_job(tmp_path / "a"), toys)
    assert str(refusal.value).endswith("; delete it and run again")
    assert "\n" not in str(refusal.value)
    path.unlink()
    assert bits(run_job(toy_job(tmp_path / "a"), toys).folder) == bits(run_job(toy_job(tmp_path / "b"), toys).folder)


def test_leftover_files_of_a_killed_process_are_removed(tmp_path: Path, toys: DataSet) -> None:
    folder = run_job(toy_job(tmp_path / "a"), toys).folder
    whole = bits(folder)
    (folder / ".0123456789abcdef.part").write_bytes(b"half")
    (folder / "checkpoint.safetensors").write_bytes(b"of a run killed right after its end")
    run_job(toy_job(tmp_path / "a"), toys)
    assert bits(folder) == whole
