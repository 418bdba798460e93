"""The trials of a sweep as numbers and words: every one with its values, the best with its interval."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.report.text import percent, plain, share_text
from holdfast.statistics import Share

Value = str | bool | int | float

DONE, FAILED, RUNNING, SAME = "done", "failed", "running", "same"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One key of a sweep and its range or list as written; ``listed`` is every value where they can be counted."""

    key: str
    values: str
    log: bool = False
    listed: Sequence[Value] | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: its values, how it ended, and the shares of validation samples right under attack and without."""

    number: int
    state: str
    values: Mapping[str, Value]
    robust: Share | None = None
    clean: Share | None = None
    epoch: int | None = None
    seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All trials of one method, judged by ``judge`` on validation samples; ``command`` trains the best one."""

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
        """The trials, best first; those without a result last, in their order."""
        return sorted(self.trials, key=lambda trial: -1 if trial.robust is None else trial.robust.value, reverse=True)

    @property
    def best(self) -> Trial | None:
        """The trial that holds most; the earliest of equals."""
        return next((trial for trial in self.ranked if trial.robust is not None), None)

    @property
    def ended(self) -> int:
        """How many trials are over, well or not."""
        return len(self.trials) - self.running

    @property
    def running(self) -> int:
        """How many trials are not over."""
        return sum(trial.state == RUNNING for trial in self.trials)

    @property
    def so_far(self) -> str:
        """The best of it in a few words."""
        return "" if self.best is None else f"best: trial {self.best.number}, {share_text(self.best.robust)} %"


def value_text(value: Value | None) -> str:
    """A value short enough for a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def words(sweep: Sweep) -> list[str]:
    """What the sweep found, in careful sentences."""
    found, best = [], sweep.best
    done = sum(trial.state == DONE for trial in sweep.trials)
    if best is not None and best.robust is not None and best.clean is not None:
        values = ", ".join(f"{key} {value_text(value)}" for key, value in best.values.items())
        found.append(
            f"Best of {done}: trial {best.number} ({values}) holds {percent(best.robust.value)} % of {best.robust.n} "
            f"validation samples (95 % interval {percent(best.robust.low)} to {percent(best.robust.high)}) under "
            f"{sweep.judge}, {percent(best.clean.value)} % unattacked."
        )
        found.append(
            "The interval is of one trial, seed and validation set; the best of many on the same samples looks better "
            "than it is. No test sample was used: train it, then evaluate."
        )
    for state, said in ((FAILED, "failed"), (SAME, "repeated earlier values"), (RUNNING, "did not end yet")):
        if many := sum(trial.state == state for trial in sweep.trials):
            found.append(f"{many} of {len(sweep.trials)} trials {said}.")
    return found


def text_sweep(sweep: Sweep) -> str:
    """Every trial as Markdown that also reads well in a terminal, best first."""
    head = ["Trial", *(axis.key for axis in sweep.axes), "Robust %", "Clean %", "n", "Epoch", "Seconds", "Ended"]
    lines = [[plain(cell) for cell in line] for line in [head, *(_cells(sweep, trial) for trial in sweep.ranked)]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in lines]
    rule = ["-" * width for width in widths]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
    return "\n\n".join([table, *map(plain, words(sweep))]) + "\n"


def _cells(sweep: Sweep, trial: Trial) -> list[str]:
    values = [value_text(trial.values.get(axis.key)) for axis in sweep.axes]
    shares = [share_text(trial.robust), share_text(trial.clean)]
    counts = ["-" if trial.robust is None else str(trial.robust.n), value_text(trial.epoch)]
    seconds = "-" if trial.seconds is None else f"{trial.seconds:.1f}"
    ended = f"{trial.state}: {trial.reason}" if trial.reason else trial.state
    return [str(trial.number), *values, *shares, *counts, seconds, ended]


def markdown(sweep: Sweep) -> str:
    """The sweep as a document: what was tried, every trial, and the command that trains the best."""
    tried = [f"- `{axis.key}`: {axis.values}" for axis in sweep.axes]
    title = plain(f"# {sweep.title}: sweep of {sweep.method}")
    head = [title, "\n".join(map(plain, tried)), text_sweep(sweep).strip()]
    tail = [f"```sh\n{sweep.command}\n```"] if sweep.command else []
    return "\n\n".join([*(html.escape(part, quote=False) for part in head), *tail]) + "\n"


def csv_text(sweep: Sweep) -> str:
    """Every trial as csv, in the order of their numbers, numbers in full; a cell is empty where nothing is known."""
    keys = [axis.key for axis in sweep.axes]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    shares = ["robust", "robust_low", "robust_high", "clean", "samples"]
    writer.writerow(["trial", "state", *keys, *shares, "epoch", "seconds", "reason"])
    for trial in sorted(sweep.trials, key=lambda trial: trial.number):
        values = [trial.values.get(key, "") for key in keys]
        told = ["", "", "", "", ""]
        if trial.robust is not None and trial.clean is not None:
            held = trial.robust
            told = [*map(repr, (held.value, held.low, held.high, trial.clean.value)), str(held.n)]
        writer.writerow([trial.number, trial.state, *values, *told, trial.epoch, trial.seconds, trial.reason])
    return text.getvalue()
