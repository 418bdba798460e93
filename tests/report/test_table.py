from dataclasses import replace

import numpy as np
import pytest

from holdfast.report.summary import against
from holdfast.report.table import WORST, Cell, eps_text, main_table, other_table
from holdfast.statistics import Share


def test_columns_are_clean_the_worst_case_and_the_attacks_at_eps(study) -> None:
    assert [column.title for column in main_table(study).columns] == ["Clean", "Worst case", "PGD-40", "FGSM"]
    assert [(c.title, c.note) for c in other_table(study).columns] == [
        ("PGD-40 at 0.1", "linf 0.1"),
        ("PGD-L2", "l2 1.5"),
    ]


def test_cells_hold_every_seed_and_their_mean(study) -> None:
    row = main_table(study).rows[1]
    assert (row.name, row.seeds, row.n) == ("AT", (0, 1), (500, 500))
    runs = [run for run in study.runs if run.name == "AT"]
    shares = tuple(against(run.records, "PGD-40", 0.3) for run in runs)
    assert row.cells[2].shares == shares
    assert row.cells[2].spread.mean == pytest.approx(np.mean([share.value for share in shares]))
    assert (row.cells[2].low, row.cells[2].high) == (min(s.low for s in shares), max(s.high for s in shares))


def test_an_attack_a_run_lacks_is_an_empty_cell(make_run, make_study, without) -> None:
    full, fewer = make_run("a", 0, n=20), without(make_run("b", 0, n=20), "FGSM")
    table = main_table(make_study([full, fewer]))
    assert table.rows[1].cells[3].spread is None
    assert Cell((None, Share(1, 2))).spread.n == 1


def test_a_worst_case_nobody_measured_says_so(study) -> None:
    assert main_table(study).columns[WORST].note == "over all linf attacks"
    assert "upper bound" in main_table(replace(study, eps=0.2)).columns[WORST].note


def test_there_is_no_other_table_without_other_attacks(make_run, make_study, without) -> None:
    run = without(without(make_run("a", 0, n=9), "PGD-L2"), "PGD-40 at 0.1")
    assert other_table(make_study([run])) is None


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (8 / 255, "8/255"),
        (0.3, "0.3"),
        (0.031, "0.031"),
        (0.0, "0"),
        (1.0, "1"),
        (float("inf"), "inf"),
        (1 / 3, "85/255"),
    ],
)
def test_eps_as_people_write_it(eps: float, text: str) -> None:
    assert eps_text(eps) == text
