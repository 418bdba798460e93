"""Progress of long work: a bar on a terminal and in notebooks, a line now and then in a log file."""

import sys
import time
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

FIRST, EVERY = 10.0, 60.0  # seconds until the first line about a task in a log, and from one line to the next
LOOK = 1.0  # seconds from one look for lines that are due to the next: a single piece may take hours


@dataclass
class _Task:
    """A piece of work in a log: when it began, when a line about it is due, what was done before and what is done."""

    began: float
    due: float
    before: int
    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass
class Progress:
    """Shows what is being done; used as a context. With ``shown=False`` nothing is shown."""

    shown: bool = True
    _tasks: dict[str, TaskID] = field(default_factory=dict)
    _logged: dict[str, _Task] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _ended: Event = field(default_factory=Event)

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
            with self._lock:
                self._log(what, done, total, f" ({words})" if words else "")

    def _draw(self, what: str, done: int, total: int, words: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, words="")
        elif self._bars.tasks[self._tasks[what]].finished:  # the same kind of work once more
            self._bars.reset(self._tasks[what])
        self._bars.update(self._tasks[what], completed=done, total=total, words=words)

    def _log(self, what: str, done: int, total: int, detail: str) -> None:
        now = time.monotonic()
        task = self._logged.setdefault(what, _Task(now, now + FIRST, done))
        task.done, task.total, task.detail = done, total, detail
        if done == total:
            del self._logged[what]
            passed = now - task.began
            _print(f"{what}: done" + (f" in {duration(passed)}" if passed >= 1 else "") + detail)
        elif now >= task.due:
            _line(what, task, now)

    def _watch(self) -> None:
        """Print the lines that are due, also where nothing was reported since the last one."""
        while not self._ended.wait(LOOK):
            with self._lock:
                now = time.monotonic()
                for what, task in self._logged.items():
                    if now >= task.due:
                        _line(what, task, now)

    def __enter__(self) -> Self:
        self._bars.start()
        if self.shown and not self._live:
            Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._bars.stop()


def _line(what: str, task: _Task, now: float) -> None:
    """Print how far a task is and the time that is left, estimated from the pieces finished since it began."""
    task.due = now + EVERY
    passed, here = now - task.began, task.done - task.before
    left = f", about {duration((task.total - task.done) * passed / here)} left" if here else ""
    _print(f"{what}: {task.done}/{task.total}, {duration(passed)} passed{left}{task.detail}")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds in the two largest units that are needed: 8 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
