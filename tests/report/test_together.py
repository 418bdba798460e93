"""Several studies side by side: names told apart, tests where the samples agree, other settings named."""

from dataclasses import replace

import pytest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records
from holdfast.report.sections import results
from holdfast.report.study import Run, check_same_samples
from holdfast.report.summary import compared
from holdfast.report.together import together


def with_facts(run: Run, **facts: object) -> Run:
    return replace(run, records=Records(run.records.columns, {**run.records.facts, **facts}, run.records.arrays))


def test_only_names_that_both_have_are_told_apart(make_run, make_study) -> None:
    a, b = (make_study([make_run(name, 0, n=20) for name in names]) for names in (("AT", "plain"), ("AT", "TLA")))
    a = replace(a, terms={"AT, plain": "Two methods."}, date="2026-01-02")
    b = replace(b, terms={"AT": "A method."}, date="2026-03-01")
    both = together({"first": a, "second": b})
    assert both.titles == ["first: AT", "plain", "second: AT", "TLA"]
    assert both.terms == {"first: AT, plain": "Two methods.", "second: AT": "A method."}
    assert both.date == "2026-03-01"
    assert "# first\n" in both.recipe
    pairs, refusal = compared(both)
    assert len(pairs) == 6
    assert refusal == ""


def test_other_threats_are_refused(make_run, make_study) -> None:
    study = make_study([make_run("AT", 0, n=20)])
    with pytest.raises(ValueError, match=r"second at linf eps 0\.1, so their accuracies cannot stand side by side"):
        together({"first": study, "second": replace(study, eps=0.1, threat="linf eps 0.1")})


def test_attacks_of_one_name_with_other_settings_are_named(make_run, make_study) -> None:
    run = make_run("AT", 0, n=20)
    attacks = {**run.records.facts["attacks"], "FGSM": AttackFacts(norm="linf", eps=0.3, settings={"step": 1}).facts()}
    other = with_facts(make_run("AT", 0, n=20), attacks=attacks)
    section = results.section(together({"first": make_study([run]), "second": make_study([other])}))
    assert section is not None
    expected = "FGSM has other settings in some runs, so its columns cannot be compared: first: AT; second: AT."
    assert expected in section.warnings


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({}, {}, True),
        ({"samples": "a"}, {"samples": "a", "data": {"name": "renamed"}}, True),
        ({"samples": "a"}, {"samples": "b"}, False),
        ({"samples": "a"}, {}, True),  # made before inputs were identified
        ({}, {"data": {"name": "other"}}, False),
    ],
)
def test_inputs_are_told_apart(make_run, first: dict, second: dict, same: bool) -> None:
    a, b = (with_facts(make_run("AT", 0, n=20), **facts).records for facts in (first, second))
    if same:
        check_same_samples(a, b)
        return
    with pytest.raises(ValueError, match="two models of 20 and 20 records were not measured on the same inputs, so"):
        check_same_samples(a, b)
