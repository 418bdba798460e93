"""Tables of robust accuracy."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from holdfast.records.facts import Draws
from holdfast.records.records import Records
from holdfast.report.elements.format import eps_text
from holdfast.report.elements.table import UNKNOWN, Cell
from holdfast.report.sections.results import main_table, other_table, section, settings_table
from holdfast.report.summary import against
from holdfast.statistics import Share


def test_columns_are_clean_worst_case_and_the_attacks_at_eps(study) -> None:
    assert [column.title for column in main_table(study).columns] == [
        "Clean",
        "Worst case",
        "PGD-40",
        "FGSM",
        "n",
        "Seeds",
    ]
    assert [(c.title, c.note) for c in other_table(study).columns][:-2] == [
        ("PGD-40 at 0.1", "linf 0.1"),
        ("PGD-L2", "l2 1.5"),
    ]


def test_cells_hold_every_seed_and_their_mean(study) -> None:
    row = main_table(study).rows[1]
    assert (row.name, row.cells[-2:]) == ("AT", ("500", "0, 1"))
    assert [(seed.name, seed.cells[-2:]) for seed in row.seeds] == [("seed 0", ("500", "0")), ("seed 1", ("500", "1"))]
    runs = [run for run in study.runs if run.name == "AT"]
    shares = tuple(against(run.records, "PGD-40", 0.3) for run in runs)
    assert row.cells[2].shares == shares
    assert tuple(seed.cells[2].shares[0] for seed in row.seeds) == shares
    assert row.cells[2].spread.mean == pytest.approx(np.mean([share.value for share in shares]))
    assert (row.cells[2].low, row.cells[2].high) == (min(s.low for s in shares), max(s.high for s in shares))


def test_an_attack_that_a_run_lacks_is_an_empty_cell(make_run, make_study, without) -> None:
    full, fewer = make_run("a", 0, n=20), without(make_run("b", 0, n=20), "FGSM")
    table = main_table(make_study([full, fewer]))
    assert table.rows[1].cells[3].spread is None
    assert Cell((None, Share(1, 2))).spread.n == 1


def test_an_unmeasured_worst_case_is_marked_as_a_bound(study) -> None:
    assert main_table(study).columns[1].note == "over all linf attacks"
    assert "upper bound" in main_table(replace(study, eps=0.2)).columns[1].note


def test_there_is_no_other_table_without_other_attacks(make_run, make_study, without) -> None:
    run = without(without(make_run("a", 0, n=9), "PGD-L2"), "PGD-40 at 0.1")
    assert other_table(make_study([run])) is None


def test_a_randomized_model_is_shown_with_its_mean_and_its_worst_draw(make_run, make_study) -> None:
    assert not any("randomized" in sentence for sentence in section(make_study([make_run("a", 0, n=9)])).sentences)
    run = make_run("a", 0, n=9)
    facts = {**run.records.facts, "clean": {**run.records.facts["clean"], "draws": asdict(Draws(10, 0.912, 0.9))}}
    facts["attacks"] = {**facts["attacks"]}
    facts["attacks"]["FGSM"] = {**facts["attacks"]["FGSM"], "draws": asdict(Draws(10, 0.5, 0.25))}
    noisy = replace(run, records=Records(run.records.columns, facts))
    (sentence,) = [s for s in section(make_study([noisy])).sentences if "randomized" in s]
    assert sentence == (
        "a (seed 0) is randomized. Its mean accuracy over 10 draws: clean 91.2 % (worst draw 90.0 %), "
        "FGSM 50.0 % (worst draw 25.0 %). The tables count a sample as robust only if every draw classifies it "
        "correctly."
    )


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
def test_eps_is_written_in_gray_levels_or_decimals(eps: float, text: str) -> None:
    assert eps_text(eps) == text


def test_a_study_without_attacks_has_clean_accuracy_only(make_run, make_study, without) -> None:
    run = make_run("a", 0, n=9)
    for attack in list(run.records.attacks):
        run = without(run, attack)
    study = replace(make_study([run]), norm=None, eps=None)
    assert [column.title for column in main_table(study).columns] == ["Clean", "n", "Seeds"]
    assert other_table(study) is None
    assert settings_table(study) is None


def test_settings_are_listed_for_each_attack(study) -> None:
    rows = {row.name: row.cells for row in settings_table(study).rows}
    assert rows["PGD-40"] == (UNKNOWN, "linf", "0.3", "within eps", "steps 40")
    assert rows["PGD-L2"][-1] == "-"


def test_what_an_attack_is_and_its_inner_attack_stand_in_words(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    inner = {"name": "pgd", "threat": {"eps": 0.3}, "steps": 40, "step": None, "decay": 0.5}
    settings = {"PGD-40": inner, "FGSM": {"attack": inner, "source": "self"}}
    attacks = {name: run.records.facts["attacks"][name] | {"settings": given} for name, given in settings.items()}
    facts = run.records.facts | {"attacks": run.records.facts["attacks"] | attacks}
    study = make_study([replace(run, records=replace(run.records, facts=facts))])
    rows = {row.name: row.cells for row in settings_table(study).rows}
    assert (rows["PGD-40"][0], rows["PGD-40"][-1]) == (
        "Projected gradient descent on the negative loss.",
        "steps 40, decay 0.5",
    )
    assert rows["FGSM"][0] == "Black-box attack by transfer."
    assert rows["FGSM"][-1] == "attack pgd (steps 40, decay 0.5), source self"


@pytest.mark.parametrize(
    ("settings", "short"),
    [
        ({"steps": 7, "step": 0.08}, True),
        ({"steps": 7, "step": 0.09}, False),
        ({"steps": 10, "step": 0.06}, False),  # exactly 2 eps
        ({"steps": 7, "step": None}, False),
        ({"attack": {"steps": 7, "step": 0.08}}, True),
        ({"steps": 7, "step": 0.08, "at": 0.3}, False),  # a point of a curve, whose step is scaled
    ],
)
def test_steps_that_cannot_cross_the_ball_give_a_warning(make_run, make_study, settings, short: bool) -> None:
    run = make_run("a", 0, n=9)
    facts = run.records.facts
    attacks = {**facts["attacks"], "PGD-40": {**facts["attacks"]["PGD-40"], "settings": settings}}
    run = replace(run, records=replace(run.records, facts={**facts, "attacks": attacks}))
    expected = "PGD-40 takes 7 steps of 0.08, which cannot cross the ball (2 eps = 0.6)"
    assert any(warning.startswith(expected) for warning in section(make_study([run])).warnings) == short


PAIR = ("PGD-40", "FGSM")


def test_attacks_with_the_same_short_steps_share_a_warning(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    given = {name: run.records.facts["attacks"][name] | {"settings": {"steps": 4, "step": 0.1}} for name in PAIR}
    facts = run.records.facts | {"attacks": run.records.facts["attacks"] | given}
    warnings = section(make_study([replace(run, records=replace(run.records, facts=facts))])).warnings
    found = [warning for warning in warnings if "cannot cross the ball" in warning]
    assert len(found) == 1
    assert found[0].startswith(
        "PGD-40 and FGSM take 4 steps of 0.1, which cannot cross the ball (2 eps = 0.6), so they"
    )


def test_the_precision_of_crafting_is_said(make_run, make_study) -> None:
    runs = [make_run(name, 0, n=9) for name in "abc"]
    ways = ({"folded": True, "arithmetic": "bfloat16"}, {"folded": False, "arithmetic": "float32", "reason": "why"})
    attacks = {name: {**given, "settings": {"name": "pgd"}} for name, given in runs[0].records.facts["attacks"].items()}
    told = [
        replace(run, records=Records(run.records.columns, {**run.records.facts, "attacks": attacks, "crafting": way}))
        for run, way in zip(runs, (*ways, ways[0]), strict=True)
    ]
    fused = "Crafted in bfloat16 on the fused form of the model, judged in float32 on the model itself."
    assert fused in section(make_study([told[0], told[2]])).sentences
    mixed = section(make_study(told)).sentences
    assert f"a (seed 0) and c (seed 0): {fused}" in mixed
    assert "b (seed 0): Crafted in float32 on the model itself (why), judged in float32 on the model itself." in mixed
    assert not any("rafted in" in sentence for sentence in section(make_study(runs)).sentences)  # of older records
