"""The trials of a sweep: each with its values and its result, and the best with its interval."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.report.format import percent
from holdfast.report.table import UNKNOWN, share_text
from holdfast.statistics import Share

Value = str | bool | int | float

DONE, FAILED, RUNNING, SAME = "done", "failed", "running", "same"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One key of a sweep and its range or list as written; ``listed`` has all values if they are finite in number."""

    key: str
    values: str
    log: bool = False
    listed: Sequence[Value] | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: its values, its state, and its robust and clean accuracy on validation samples."""

    number: int
    state: str
    values: Mapping[str, Value]
    robust: Share | None = None
    clean: Share | None = None
    epoch: int | None = None
    seconds: float | None = None
    reason: str = ""

    @property
    def values_text(self) -> str:
        return ", ".join(f"{key} {value_text(value)}" for key, value in self.values.items())


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All trials of one method; ``judge`` is the attack of the validation, ``command`` trains the best trial."""

    name: str
    title: str
    method: str
    seed: int
    judge: str
    sampler: str
    axes: Sequence[Axis]
    trials: Sequence[Trial]
    asked: int
    recipe: str
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first; trials without a result come last, in their order."""
        return sorted(self.trials, key=lambda trial: -1 if trial.robust is None else trial.robust.value, reverse=True)

    @property
    def best(self) -> Trial | None:
        """The trial with the highest robust accuracy; the earliest of equals."""
        return next((trial for trial in self.ranked if trial.robust is not None), None)

    @property
    def ended(self) -> int:
        """The number of trials that are finished or failed."""
        return len(self.trials) - self.running

    @property
    def running(self) -> int:
        """The number of trials that are still running."""
        return sum(trial.state == RUNNING for trial in self.trials)

    @property
    def so_far(self) -> str:
        """The best trial so far in a few words."""
        return "" if self.best is None else f"best: trial {self.best.number}, {share_text(self.best.robust)} %"


def value_text(value: Value | None) -> str:
    """A value short enough for a table."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def conclusions(sweep: Sweep) -> list[str]:
    """The best trial, how to read its interval, and how many trials gave no result, in sentences."""
    found, best = [], sweep.best
    done = sum(trial.state == DONE for trial in sweep.trials)
    if best is not None and best.robust is not None and best.clean is not None:
        found.append(
            f"Best of {done}: trial {best.number} ({best.values_text}) has a robust accuracy of "
            f"{percent(best.robust.value)} % on {best.robust.n} validation samples (95 % interval "
            f"{percent(best.robust.low)} to {percent(best.robust.high)}) under {sweep.judge}, and a clean accuracy of "
            f"{percent(best.clean.value)} %."
        )
        found.append(
            "The interval is of one trial, seed and validation set; the best of many on the same samples looks better "
            "than it is. No test sample was used: train it, then evaluate."
        )
    for state, ending in ((FAILED, "failed"), (SAME, "repeated earlier values"), (RUNNING, "are still running")):
        if many := sum(trial.state == state for trial in sweep.trials):
            found.append(f"{many} of {len(sweep.trials)} trials {ending}.")
    return found


def csv_text(sweep: Sweep) -> str:
    """All trials as csv in the order of their numbers, with all digits; unknown values are empty."""
    keys = [axis.key for axis in sweep.axes]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    shares = ["robust", "robust_low", "robust_high", "clean", "samples"]
    writer.writerow(["trial", "state", *keys, *shares, "epoch", "seconds", "reason"])
    for trial in sorted(sweep.trials, key=lambda trial: trial.number):
        values = [trial.values.get(key, "") for key in keys]
        results = ["", "", "", "", ""]
        if (robust := trial.robust) is not None and trial.clean is not None:
            results = [*map(repr, (robust.value, robust.low, robust.high, trial.clean.value)), str(robust.n)]
        writer.writerow([trial.number, trial.state, *values, *results, trial.epoch, trial.seconds, trial.reason])
    return text.getvalue()
