"""The ten tasks beside other libraries: holdfast's code runs, is the shortest, and the table counts its lines."""

import re
from typing import Any

import pytest
import snippets
import torch

TEXT = snippets.PAGE.read_text(encoding="utf-8")
CODE = list(snippets.snippets(TEXT))
TASKS = list(dict.fromkeys(task for task, *_ in CODE))
OURS = "holdfast"


def lines(task: str) -> dict[str, int]:
    """The lines of a task by library, without blank ones."""
    return {library: sum(map(bool, code.splitlines())) for one, library, code in CODE if one == task}


def run(task: str) -> dict[str, Any]:
    names = snippets.names_for(task)
    (code,) = [code for one, library, code in CODE if (one, library) == (task, OURS)]
    exec(compile(code, task, "exec"), names)
    return names


@pytest.mark.parametrize("task", TASKS)
def test_ours_runs_and_is_not_longer_than_the_shortest(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    counted = lines(task)
    assert counted[OURS] <= min(count for library, count in counted.items() if library != OURS)
    names = run(task)
    printed = capsys.readouterr().out
    assert "worst case" in printed or "x_adv" in names or not names["model"].training
    if "x_adv" in names:
        assert names["x_adv"].shape == names["x"].shape
        assert not torch.equal(names["x_adv"], names["x"])


def test_the_table_counts_the_lines_of_the_page() -> None:
    head, _, *rows = (line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("|"))
    assert len(rows) == len(TASKS) == 10
    for row, task in zip(rows, TASKS, strict=True):
        match = re.match(r"\[(.*)\]\(#(.*)\)", row[0])
        assert match
        assert match[1] == task
        assert match[2] == re.sub(r"[^a-z0-9 -]", "", task.lower()).replace(" ", "-")
        counted = lines(task)
        assert row[1:] == [str(counted.get(library, "-")) for library in head[1:]]


def test_no_line_is_wider_than_the_page_says() -> None:
    assert max(len(line) for *_, code in CODE for line in code.splitlines()) <= 120


def test_every_task_names_the_packages_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(snippets, "PACKAGES", {name: f"no_{name}" for name in snippets.PACKAGES})
    with pytest.raises(SystemExit) as end:
        snippets.main()
    assert end.value.code is False
    assert len(capsys.readouterr().out.splitlines()) == len(CODE)
