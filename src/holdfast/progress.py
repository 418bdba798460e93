"""Progress of long work: a bar on a terminal and in notebooks, a line now and then in a log file."""

import sys
import time
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

FIRST, EVERY = 10.0, 60.0  # seconds until the first line about a task in a log, and from one line to the next


@dataclass
class _Task:
    """A piece of work in a log: when it began, when a line about it is due, and what was done before it began."""

    began: float
    due: float
    before: int = 0


@dataclass
class Progress:
    """Shows what is being done; used as a context. With ``shown=False`` nothing is shown."""

    shown: bool = True
    _tasks: dict[str, TaskID] = field(default_factory=dict)
    _logged: dict[str, _Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        console = Console(stderr=True)
        self._live = self.shown and (console.is_terminal or console.is_jupyter)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
            disable=not self._live,
        )

    def report(self, what: str, done: int, total: int, words: str) -> None:
        """Show that ``done`` of ``total`` pieces of ``what`` are finished; may be called again for the same piece."""
        if self._live:
            self._draw(what, done, total, words)
        elif self.shown:
            self._log(what, done, total, words)

    def _draw(self, what: str, done: int, total: int, words: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, words="")
        elif self._bars.tasks[self._tasks[what]].finished:  # the same kind of work once more
            self._bars.reset(self._tasks[what])
        self._bars.update(self._tasks[what], completed=done, total=total, words=words)

    def _log(self, what: str, done: int, total: int, words: str) -> None:
        now, detail = time.monotonic(), f" ({words})" if words else ""
        task = self._logged.setdefault(what, _Task(now, now + FIRST, done))
        if done == total:
            del self._logged[what]
            passed = now - task.began
            _print(f"{what}: done" + (f" in {duration(passed)}" if passed >= 1 else "") + detail)
        elif now >= task.due:
            task.due = now + EVERY
            _print(
                f"{what}: {done}/{total}, {duration(now - task.began)} passed{_left(task, done, total, now)}{detail}"
            )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()


def _left(task: _Task, done: int, total: int, now: float) -> str:
    """The time that is left, estimated from the pieces that were finished since the task began."""
    here = done - task.before
    return "" if here < 1 else f", about {duration((total - done) * (now - task.began) / here)} left"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds in the two largest units that are needed: 8 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
