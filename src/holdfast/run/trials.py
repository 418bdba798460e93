"""The trials of a sweep: sampled by Optuna (Akiba et al. 2019), stored in its journal, shared by processes.

The journal is an append-only file of JSON lines: nothing in it is unpickled, and readers never wait for a writer or
fail with a locked database, as with SQLite. One file lock orders the writers, and one lock per trial marks the process
that works on it. The operating system releases both when a process ends, even if it is killed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from holdfast.recipes.tables.sweep import Axis, Choice, Sampler, Value
from holdfast.report.sweep import DONE, FAILED, RUNNING, SAME, Trial
from holdfast.rng import Rng
from holdfast.statistics import Share

if TYPE_CHECKING:
    import optuna
    from filelock import FileLock


@dataclass(frozen=True)
class Task:
    """A trial that this process works on, exclusively until it releases the claim."""

    trial: "optuna.Trial"
    values: dict[str, Value]
    claim: "FileLock"

    @property
    def number(self) -> int:
        return self.trial.number


class Trials:
    """The trials under a folder."""

    def __init__(self, folder: Path, space: Mapping[str, Axis], sampler: Sampler, seed: int) -> None:
        self._optuna = library()
        from filelock import FileLock

        self.folder, self.space, self.sampler, self.seed = folder, space, sampler, seed
        self.lock, path = FileLock(folder / "journal.lock"), folder / "journal.log"
        journal = self._optuna.storages.journal
        backend = journal.JournalFileBackend(str(path), lock_obj=cast(Any, _JournalLock(self.lock, path)))
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        try:
            with self.lock:
                self.study: optuna.Study = self._optuna.create_study(
                    storage=journal.JournalStorage(backend),
                    study_name="sweep",
                    direction="maximize",
                    load_if_exists=True,
                )
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove {folder} and run again") from error

    def next(self, limit: int) -> Task | None:
        """An unfinished trial of a stopped process, or a new one if there are fewer than ``limit``, or None."""
        with self.lock:
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == self._optuna.trial.TrialState.RUNNING and (task := self._resume(trial)):
                    return task
            for number in range(len(trials), limit):
                self.study.sampler = self._sampler(number)
                if (task := self._start(self.study.ask())) is not None:
                    return task
        return None

    def _resume(self, stopped: "optuna.trial.FrozenTrial") -> Task | None:
        """Claim a trial unless its process still runs; values that were not sampled yet are sampled now."""
        claim = self._claim(stopped.number)
        if claim is None:
            return None
        self.study.sampler = self._sampler(stopped.number)
        trial = self._optuna.trial.Trial(self.study, stopped._trial_id)
        return Task(trial, {key: _draw(trial, key, axis) for key, axis in self.space.items()}, claim)

    def _start(self, trial: "optuna.Trial") -> Task | None:
        """Claim a new trial and sample its values; None if an earlier trial has the same values."""
        claim = self._claim(trial.number)
        assert claim is not None  # the number is new, and numbers are assigned under the lock
        values = {key: _draw(trial, key, axis) for key, axis in self.space.items()}
        earlier = self.study.get_trials(deepcopy=False)[: trial.number]
        same = next((other.number for other in earlier if other.params == values), None)
        if same is None:
            return Task(trial, values, claim)
        trial.set_user_attr("reason", f"same values as trial {same}")
        self._tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        claim.release()
        return None

    def _claim(self, number: int) -> "FileLock | None":
        from filelock import FileLock, Timeout

        folder = self.folder / "trials" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        claim = FileLock(folder / "claim.lock", blocking=False)
        try:
            claim.acquire()
        except Timeout:
            return None
        return claim

    def done(self, task: Task, robust: Share, clean: Share, epoch: int, seconds: float) -> None:
        """Store the result of a trial: its accuracy on validation samples at the selected epoch."""
        counts = {"robust": robust.successes, "clean": clean.successes, "samples": robust.n}
        task.trial.set_user_attr("result", counts | {"epoch": epoch, "seconds": seconds})
        self._tell(task.trial, robust.value)

    def failed(self, task: Task, reason: str) -> None:
        task.trial.set_user_attr("reason", reason)
        self._tell(task.trial, state=self._optuna.trial.TrialState.FAIL)

    def _tell(self, trial: "optuna.Trial", value: float | None = None, state: Any = None) -> None:
        with self.lock:  # otherwise another process could find the trial running and its claim free
            # not GridSampler, which would try to stop study.optimize, which is not used
            self.study.sampler = self._optuna.samplers.RandomSampler()
            self.study.tell(trial, value, state)

    def known(self) -> list[Trial]:
        return [_read(trial) for trial in self.study.get_trials(deepcopy=False)]

    def _sampler(self, number: int) -> "optuna.samplers.BaseSampler":
        """The sampler of a trial, seeded by its number, so that trials differ and resuming does not change them."""
        samplers, seed = self._optuna.samplers, Rng(self.seed).fork("sweep").fork(number).seed % 2**32
        if self.sampler == "grid":
            points = {key: axis.listed or () for key, axis in self.space.items()}
            return cast("optuna.samplers.BaseSampler", samplers.GridSampler(points, seed=self.seed))
        if self.sampler == "random":
            return cast("optuna.samplers.BaseSampler", samplers.RandomSampler(seed=seed))
        return cast("optuna.samplers.BaseSampler", samplers.TPESampler(seed=seed, constant_liar=True))


_STATES = {"COMPLETE": DONE, "FAIL": FAILED, "PRUNED": SAME}


def _read(trial: "optuna.trial.FrozenTrial") -> Trial:
    state, attributes = _STATES.get(trial.state.name, RUNNING), trial.user_attrs
    reason = str(attributes.get("reason", "")) if state in (FAILED, SAME) else ""
    unfinished = Trial(number=trial.number, state=state, values=dict(trial.params), reason=reason)
    if state != DONE:
        return unfinished
    result = attributes["result"]
    robust, clean = (Share(result[name], result["samples"]) for name in ("robust", "clean"))
    return replace(unfinished, robust=robust, clean=clean, epoch=result["epoch"], seconds=result["seconds"])


def library() -> ModuleType:
    """Import Optuna; if it is not installed, the error says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "holdfast sweep needs the package optuna, which is not installed; run: pip install 'holdfast[sweep]'"
        ) from error
    return optuna


def _draw(trial: "optuna.Trial", key: str, axis: Axis) -> Value:
    if isinstance(axis, Choice):
        return cast(Value, trial.suggest_categorical(key, axis.values))
    if axis.whole:
        return trial.suggest_int(key, int(axis.low), int(axis.high), log=axis.log)
    return trial.suggest_float(key, axis.low, axis.high, log=axis.log)


class _JournalLock:
    """The lock that Optuna holds while it appends to the journal; acquiring it removes an incomplete last line."""

    def __init__(self, lock: "FileLock", path: Path) -> None:
        self._lock, self._path = lock, path

    def acquire(self) -> bool:
        self._lock.acquire()
        written = self._path.read_bytes()
        if not written.endswith(b"\n"):
            with self._path.open("r+b") as file:
                file.truncate(written.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._lock.release()
