"""Progress: a bar on a terminal, one line per finished task elsewhere."""

import io
import time

import pytest
from rich.console import Console

from holdfast import progress
from holdfast.progress import Progress, duration


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


def test_log_gets_a_line_now_and_then_with_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 5.0, 20.0, 50.0, 90.0, 100.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with Progress() as shown:
        for done in (0, 1, 2, 5, 9, 10):
            shown.report("attack", done, 10, "pgd")
    assert capsys.readouterr().err.splitlines() == [
        "attack: 2/10, 20 s passed, about 1 min 20 s left (pgd)",
        "attack: 9/10, 1 min 30 s passed, about 10 s left (pgd)",
        "attack: done in 1 min 40 s (pgd)",
    ]


def test_log_gets_a_line_while_a_single_piece_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST", "EVERY", "LOOK"):
        monkeypatch.setattr(progress, name, 0.01)
    with Progress() as shown:
        shown.report("attack", 0, 10, "pgd")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert set(lines) == {"attack: 0/10, 0 s passed (pgd)"}
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_if_it_is_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(shown=False) as shown:
        shown.report("attack", 1, 1, "pgd")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "text"), [(8, "8 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")])
def test_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text
