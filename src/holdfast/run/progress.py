"""A progress bar where there is a terminal; one line per finished piece where there is none."""

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows what is being done; used as a context."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._live = console.is_terminal
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}

    def report(self, what: str, done: int, total: int, words: str) -> None:
        """Show that ``done`` of ``total`` pieces of ``what`` are finished."""
        if not self._live:
            if done == total:
                print(f"{what}: done" + (f" ({words})" if words else ""), file=sys.stderr, flush=True)
            return
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, words="")
        elif self._bars.tasks[self._tasks[what]].finished:  # the same kind of work once more
            self._bars.reset(self._tasks[what])
        self._bars.update(self._tasks[what], completed=done, total=total, words=words)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()
