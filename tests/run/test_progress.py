"""Progress: a bar for people, a line per finished piece for logs."""

import io

import pytest
from rich.console import Console

from holdfast.run import progress
from holdfast.run.progress import Progress


def test_without_a_terminal_one_line_per_finished_piece(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        for done in (1, 2, 3):
            shown.report("train AT", done, 3, f"epoch {done}")
        shown.report("attack AT", 1, 2, "")
        shown.report("attack AT", 2, 2, "")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "train AT: done (epoch 3)\nattack AT: done\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with Progress() as shown:
        for done in range(1, 4):
            shown.report("train C&W [x]", done, 3, "epoch [1/3]: 50.0% clean")
            shown.report("attack", 1, 2, "")
    said = screen.getvalue()
    assert "3/3" in said
    assert "train C&W" in said
    assert "50.0% clean" in said


def test_a_piece_that_ends_early_is_a_full_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    with Progress() as shown:
        shown.report("train", 1, 9, "")
        shown.report("train", 2, 2, "")
    assert "2/2" in screen.getvalue()


def test_an_error_inside_leaves_the_terminal_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True))
    shown = Progress()
    shown.__enter__()
    shown.report("train", 1, 3, "")
    shown.__exit__(KeyError, KeyError(), None)
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")  # the cursor is shown again


def test_a_bar_begins_anew_for_the_same_work_of_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda stderr: console)
    with Progress() as shown:
        for done, total in ((2, 2), (1, 5), (4, 5)):
            shown.report("training", done, total, "")
    assert "4/5" in screen.getvalue()
