"""Several tasks of a study at a time, each in a process of its own.

A recipe with ``threads`` says on how many cores a training is fastest. Where the machine has more, independent
trainings and evaluations run side by side; each gives the same bits as it would alone.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from joblib import Parallel, delayed

from holdfast.recipes.stored import read_recipe
from holdfast.run.session import Session

Task = TypeVar("Task")
Message = tuple[str, int, int, str]
"""The arguments of a call of progress: what is being done, pieces done, pieces in all, a short message."""


def run_each(session: Session, tasks: Sequence[Task], do: Callable[[Session, Task], None]) -> None:
    """Call ``do(session, task)`` for every task, in several processes where that pays.

    In other processes the session is opened anew, and progress is reported when a task has ended.
    """
    many = processes(session, len(tasks))
    if many == 1:
        for task in tasks:
            do(session, task)
        return
    recipe, given = session.recipe, (session.out, session.data_dir, session.asked_device)
    calls = (delayed(_in_process)(recipe.table(), recipe.name, given, task, do) for task in tasks)
    for messages in Parallel(n_jobs=many, return_as="generator_unordered")(calls):
        for message in messages:
            session.progress(*message)


def processes(session: Session, tasks: int) -> int:
    """The number of processes for so many tasks: one, unless the recipe limits the threads of each."""
    threads = session.recipe.threads
    if threads is None or session.device.type != "cpu":
        return 1
    return max(1, min(tasks, cores() // threads))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_process(
    table: dict[str, Any],
    name: str,
    given: tuple[Path, Path | None, str],
    task: Task,
    do: Callable[[Session, Task], None],
) -> list[Message]:
    """Do a task in a session of this process; returns the messages about finished pieces."""
    messages: list[Message] = []

    def progress(*message: Any) -> None:
        _, done, total, _ = message
        messages.extend([message] if done == total else [])

    out, data_dir, device = given
    do(Session.open(read_recipe(table, name), out, data_dir, device, progress), task)
    return messages
