"""Progress: a bar on a terminal, one line per finished task elsewhere."""

import io

import pytest
from rich.console import Console

from holdfast.run import progress
from holdfast.run.progress import Progress


def test_without_a_terminal_one_line_is_printed_per_finished_task(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        for done in (1, 2, 3):
            shown.report("train AT", done, 3, f"epoch {done}")
        shown.report("attack AT", 1, 2, "")
        shown.report("attack AT", 2, 2, "")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "train AT: done (epoch 3)\nattack AT: done\n"


def test_terminal_shows_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with Progress() as shown:
        for done in range(1, 4):
            shown.report("train C&W [x]", done, 3, "epoch [1/3]: 50.0% clean")
            shown.report("attack", 1, 2, "")
    text = screen.getvalue()
    assert "3/3" in text
    assert "train C&W" in text
    assert "50.0% clean" in text


def test_task_that_ends_early_shows_a_full_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    with Progress() as shown:
        shown.report("train", 1, 9, "")
        shown.report("train", 2, 2, "")
    assert "2/2" in screen.getvalue()


def test_error_inside_the_context_restores_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True))
    shown = Progress()
    shown.__enter__()
    shown.report("train", 1, 3, "")
    shown.__exit__(KeyError, KeyError(), None)
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")  # the cursor is shown again


def test_bar_restarts_for_another_task_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with Progress() as shown:
        for done, total in ((2, 2), (1, 5), (4, 5)):
            shown.report("training", done, total, "")
    assert "4/5" in screen.getvalue()
