"""The tables and sentences as text for the terminal and for Markdown."""

from dataclasses import replace

import pytest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.elements.format import p_text
from holdfast.report.elements.table import Cell, cell_text
from holdfast.report.sections import sections
from holdfast.report.text import markdown, text_table
from holdfast.statistics import Share


def test_cells() -> None:
    assert cell_text(Cell((None,))) == "-"
    assert cell_text(Cell((Share(50, 100),))) == "50.0 [40.4, 59.6]"
    assert cell_text(Cell((Share(50, 100), Share(60, 100)))) == "55.0 ± 7.1 [40.4, 69.1]"


@pytest.mark.parametrize(("p", "text"), [(0.5, "0.5000"), (1e-9, "< 0.0001"), (0.0, "< 0.0001")])
def test_p_values(p: float, text: str) -> None:
    assert p_text(p) == text


def test_the_table_has_a_row_for_each_name_and_is_aligned(study) -> None:
    lines = text_table(study).splitlines()[:5]
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[1].strip() for line in lines] == ["Method", "------", "Plain", "AT", "TLA"]


def test_hostile_names_cannot_break_the_table_or_the_terminal(make_run, make_study) -> None:
    text = text_table(make_study([make_run("a|b\n\x1b[31m", 0, n=9)]))
    assert "\x1b" not in text
    assert "a\\|b\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m" in text


def warnings(study) -> list[str]:
    return [warning for section in sections(study) for warning in section.warnings]


def test_warnings_name_points_outside_missing_attacks_and_bounds(make_run, make_study, without) -> None:
    run = make_run("a", 0, n=20)
    attacks = dict(run.records.facts["attacks"]) | {"FGSM": AttackFacts(norm="linf", eps=0.3, outside=4).facts()}
    out = replace(run, seed=1, records=Records(run.records.columns, dict(run.records.facts) | {"attacks": attacks}))
    assert warnings(make_study([run])) == []
    assert warnings(make_study([out])) == [
        "FGSM returned points outside the threat, which count as failed: 4 of 20 for a (seed 1)."
    ]
    (missing,) = warnings(make_study([run, replace(without(run, "PGD-L2"), seed=2)]))
    assert missing.startswith("PGD-L2 was not run against a (seed 2)")
    (bound,) = warnings(replace(make_study([run]), eps=0.2))
    assert "upper bound" in bound
    assert "Warning: FGSM returned" in text_table(make_study([out]))


def test_a_document_names_commands_trainings_and_versions_and_is_inert(make_run, make_study) -> None:
    study = replace(make_study([make_run("<b>", 0, n=9)]), title="<i>")
    text = markdown(study, "holdfast run x", "holdfast report x --markdown FILE")
    assert text.startswith("# &lt;i>\n\nSynthetic records")
    assert "Made by `holdfast run x`, written by `holdfast report x --markdown FILE`." in text
    assert "| Method | Seed | Training seconds |" in text
    assert "Versions: holdfast 0.1.0, torch 2.13.0." in text
    assert "<" not in text
