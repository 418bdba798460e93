from dataclasses import replace

import pytest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.summary import worst
from holdfast.report.table import Cell
from holdfast.report.text import cell_text, headline, p_text, percent, text_table, warnings
from holdfast.statistics import Share


def test_the_headline_ranks_and_counts(study) -> None:
    first, *rest = headline(study)
    assert first.startswith("At linf eps 0.3, worst case over 2 attacks, on 500 samples: TLA holds ")
    means = {
        name: sum(worst(run.records, "linf", 0.3).value for run in runs) / 2 for name, runs in study.by_name().items()
    }
    assert means["TLA"] > means["AT"] > means["Plain"]
    for name, mean in means.items():
        assert f"{name} holds {percent(mean)} % (95 % interval" in first
    assert "mean of 2 seeds" in first
    assert any("significantly more" in sentence and "Plain" in sentence for sentence in rest)


def test_one_seed_is_said(make_run, make_study) -> None:
    sentences = headline(make_study([make_run("a", 0, n=50), make_run("b", 0, strength=0.01, n=50)]))
    assert sentences[0].count("one seed") == 2
    assert "one seed does not show" in sentences[-1]


def test_an_insignificant_difference_is_called_one(make_run, make_study) -> None:
    run = make_run("a", 0, n=50)
    assert "a does not differ significantly from b." in headline(make_study([run, replace(run, name="b")]))


def test_seeds_that_disagree_are_reported_as_such(make_run, make_study) -> None:
    strong, weak = make_run("a", 0, n=200), make_run("b", 1, strength=0.01, n=200)
    runs = [strong, replace(strong, seed=1), replace(strong, name="b"), weak]
    assert "a differs significantly from b at some seeds only." in headline(make_study(runs))


def test_a_refused_comparison_is_said_and_the_rest_stands(make_run, make_study) -> None:
    sentences = headline(make_study([make_run("a", 0, n=20), make_run("b", 0, n=30)]))
    assert "on 20 to 30 samples" in sentences[0]
    assert sentences[1].startswith("No paired test: two models of 20 and 30 records")


def test_runs_without_a_common_seed(make_run, make_study) -> None:
    assert any("shares no seed with" in s for s in headline(make_study([make_run("a", 0, n=9), make_run("b", 1, n=9)])))


def test_a_bound_is_called_at_most(study) -> None:
    assert "holds at most" in headline(replace(study, eps=0.2))[0]


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


def test_warnings_name_points_outside_missing_attacks_and_bounds(make_run, make_study, without) -> None:
    run = make_run("a", 0, n=20)
    attacks = dict(run.records.facts["attacks"]) | {"FGSM": AttackFacts(norm="linf", eps=0.3, outside=4).facts()}
    out = replace(run, seed=1, records=Records(run.records.columns, dict(run.records.facts) | {"attacks": attacks}))
    assert warnings(make_study([run])) == []
    assert warnings(make_study([out])) == [
        "FGSM returned points outside the threat, which earned nothing: 4 of 20 for a (seed 1)."
    ]
    (missing,) = warnings(make_study([run, replace(without(run, "PGD-L2"), seed=2)]))
    assert missing.startswith("PGD-L2 was not run against a (seed 2)")
    (bound,) = warnings(replace(make_study([run]), eps=0.2))
    assert "upper bound" in bound
    assert "Warning: FGSM returned" in text_table(make_study([out]))
