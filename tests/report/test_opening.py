"""The first screen: the question, the answer in sentences, its figure, and what would change it."""

from dataclasses import replace
from statistics import fmean

import pytest

from holdfast.report.elements.format import attack_text, attack_words, percent, points_text, range_text
from holdfast.report.opening import answer, opening, question, tiers
from holdfast.report.sections.results import verdicts
from holdfast.report.summary import worst


def mean(study, name: str) -> float:
    return fmean(worst(run.records, "linf", 0.3).value for run in study.attacked()[name])


def test_the_answer_ranks_groups_that_no_test_tells_apart(study) -> None:
    assert tiers(study)[-1] == ["Plain"]
    first, clean = answer(study)
    assert mean(study, "TLA") > mean(study, "AT") > mean(study, "Plain")
    top = [mean(study, name) for name in tiers(study)[0]]
    assert f"{range_text(top)} % of the samples correct under attack" in first
    assert first.endswith(f"Plain keeps {percent(mean(study, 'Plain'))} %.")
    who = "TLA loses" if len(top) == 1 else "they lose up to"
    assert clean.startswith(f"Without attack {who} ")


def test_models_that_do_not_differ_are_named_together(make_run, make_study) -> None:
    run, weak = make_run("a", 0, n=300), make_run("c", 0, strength=0.01, n=300)
    study = make_study([run, weak, replace(run, name="b")])
    first = answer(study)[0]
    assert first.startswith("a and b keep ")
    assert ", with no significant difference between them; c keeps " in first
    clean = percent(float(run.records.correct.mean()))
    assert answer(make_study([run, replace(run, name="b")]))[1] == f"Without attack: {clean} % correct."


def test_a_model_that_wins_every_test_is_said_to(make_run, make_study) -> None:
    runs = [make_run("a", 0, n=300), make_run("b", 0, strength=0.01, n=300)]
    assert "a keeps " in answer(make_study(runs))[0]
    assert ", significantly more than every other model; b keeps " in answer(make_study(runs))[0]


def test_untested_models_are_not_called_alike(make_run, make_study) -> None:
    study = make_study([make_run("a", 0, n=50), replace(make_run("a", 0, n=50), name="b", seed=1)])
    assert len(tiers(study)) == 2
    assert "significant" not in answer(study)[0]
    assert any("shares no seed with" in sentence for sentence in verdicts(study))


def test_many_groups_are_summarized(make_run, make_study) -> None:
    strengths = {"a": 3.0, "b": 0.8, "c": 0.35, "d": 0.15, "e": 0.01}
    study = make_study([make_run(name, 0, strength=strength, n=2000) for name, strength in strengths.items()])
    assert len(tiers(study)) > 3
    assert " models in between keep " in answer(study)[0]


def test_one_model_has_an_interval_and_a_figure_of_its_attacks(make_run, make_study) -> None:
    study = make_study([make_run("a", 0, n=50)])
    share = worst(study.runs[0].records, "linf", 0.3)
    assert f"(95 % interval {percent(share.low)} to {percent(share.high)})" in answer(study)[0]
    assert opening(study).plot.figure["data"][0]["y"] == ["no attack", "PGD-40", "FGSM", "all attacks"]
    assert "does a still classify correctly when an attacker may change every input value by up to 0.3?" in question(
        study
    )


def test_a_bound_is_called_at_most(study) -> None:
    assert (
        "keep at most " in answer(replace(study, eps=0.2))[0] or "keeps at most " in answer(replace(study, eps=0.2))[0]
    )


def test_what_would_change_the_answer_is_measured(study) -> None:
    changes = " ".join(opening(replace(study, eps=0.1, norm="linf")).changes)
    best = max(mean(study, name) for name in study.titles)
    assert f"at linf eps 0.3 the most robust model (TLA) keeps {percent(best)} %" in changes
    assert "standard deviation of up to" in changes
    stated = " ".join(opening(study).changes)
    assert "2 attacks were run, the strongest of them PGD-40" in stated
    assert "only linf" not in stated  # l2 attacks were run too


def test_one_seed_is_mentioned(make_run, make_study) -> None:
    study = make_study([make_run("a", 0, n=50), make_run("b", 0, strength=0.01, n=50)])
    assert any("one seed does not show" in change for change in opening(study).changes)
    assert "one seed does not show" in verdicts(study)[-1]


def test_an_insignificant_difference_is_called_one(make_run, make_study) -> None:
    run = make_run("a", 0, n=50)
    assert "a does not differ significantly from b." in verdicts(make_study([run, replace(run, name="b")]))


def test_seeds_that_disagree_are_reported(make_run, make_study) -> None:
    strong, weak = make_run("a", 0, n=200), make_run("b", 1, strength=0.01, n=200)
    study = make_study([strong, replace(strong, seed=1), replace(strong, name="b"), weak])
    assert "a differs significantly from b at some seeds only." in verdicts(study)
    assert "significant" not in answer(study)[0]


def test_a_refused_comparison_is_explained(make_run, make_study) -> None:
    study = make_study([make_run("a", 0, n=20), make_run("b", 0, n=30)])
    assert verdicts(study)[0].startswith("No paired test: two models of 20 and 30 records")
    assert "significant" not in answer(study)[0]


def test_no_samples_give_no_numbers(make_run, make_study) -> None:
    assert answer(make_study([make_run("a", 0, n=0)])) == ["No sample was evaluated."]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pgd:steps=40", "pgd (40 steps)"),
        ("pgd:steps=40,restarts=5,loss=logit_difference", "pgd (40 steps, 5 restarts, loss logit difference)"),
        ("square:sizes=[1, 2],n=3", "square (sizes [1, 2], n 3)"),
        ("pgd:steps=40 at l2:1", "pgd at l2:1 (40 steps)"),
        ("pgd at l2:1.5:-1:1", "pgd at l2:1.5:-1:1"),
        ("PGD-40 x 5", "PGD-40 x 5"),
        ("a: b", "a: b"),
    ],
)
def test_attacks_in_words(name: str, words: str) -> None:
    assert attack_text(name) == words
    assert words.startswith(attack_words(name)[0])


def test_ranges_and_points() -> None:
    assert range_text([0.5, 0.5001]) == "50.0"
    assert range_text([0.6, 0.5]) == "50.0 to 60.0"
    assert points_text(0.01) == "1.0 point"
