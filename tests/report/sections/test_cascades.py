"""The stages of cascades are summed over seeds, and a success of Square after gradient attacks is reported."""

from dataclasses import replace

import pytest

from holdfast.records.records import Records
from holdfast.report.sections.cascades import section
from holdfast.report.study import Run

STAGES = [
    {"name": "pgd", "attacked": 10, "fooled": 4, "forwards": 55, "backwards": 50, "seconds": 1.0, "outside": 0},
    {"name": "square", "attacked": 6, "fooled": 0, "forwards": 600, "backwards": 0, "seconds": 1.0, "outside": 0},
]


def with_stages(run: Run, found: int, attacked: int = 6) -> Run:
    attacks = {**run.records.facts["attacks"]}
    stages = [STAGES[0], STAGES[1] | {"fooled": found, "attacked": attacked}]
    attacks["PGD-40"] = {**attacks["PGD-40"], "stages": stages}
    return replace(run, records=Records(run.records.columns, {**run.records.facts, "attacks": attacks}))


def test_stages_are_summed_over_seeds(make_run, make_study) -> None:
    runs = [with_stages(make_run("AT", seed), 0) for seed in (0, 1)]
    found = section(make_study(runs))
    assert [(row.name, *row.cells) for row in found.tables[0].rows] == [
        ("AT", "PGD-40", "pgd", "20", "8", "5.5", "5.0"),
        ("AT", "PGD-40", "square", "12", "0", "100.0", "0.0"),
    ]
    assert not found.warnings


def test_a_success_of_square_is_reported(make_run, make_study) -> None:
    found = section(make_study([with_stages(make_run("AT", 0), 2)]))
    (warning,) = found.warnings
    assert warning.startswith("AT (seed 0): Square, which uses no gradients, fooled 2 samples that the gradient")
    assert warning.endswith("its gradients may be masked.")


def test_few_successes_of_square_are_no_sign_of_masked_gradients(make_run, make_study) -> None:
    found = section(make_study([with_stages(make_run("AT", 0), 1, attacked=10)]))
    assert not found.warnings
    assert "Square, which uses no gradients, fooled 1 sample that the gradient attacks" in " ".join(found.sentences)


@pytest.mark.parametrize("method", ["AT", "plain"])
def test_studies_without_cascades_have_no_such_section(make_run, make_study, method: str) -> None:
    assert section(make_study([make_run(method, 0)])) is None


@pytest.mark.parametrize(
    ("drawn", "broken", "words"),
    [
        (2, 0, "fooled 0 of 2 samples that FGSM left standing, drawn at random among {n}; on all of them it would"),
        (None, 1, "fooled 1 of {n} samples that FGSM left standing, which are all of them."),
    ],
)
def test_what_autoattack_finds_among_survivors_bounds_what_was_missed(
    make_run, make_study, drawn: int | None, broken: int, words: str
) -> None:
    run = with_stages(make_run("AT", 0), 0)
    standing = int((run.records.correct & ~run.records.fooled_within("FGSM", 1.0)).sum())
    attacks = {**run.records.facts["attacks"]}
    stages = [STAGES[0] | {"attacked": drawn or standing, "fooled": broken}]
    attacks["PGD-40"] = {**attacks["PGD-40"], "stages": stages, "drawn_from": "FGSM"}
    run = replace(run, records=Records(run.records.columns, {**run.records.facts, "attacks": attacks}))
    assert words.format(n=standing) in " ".join(section(make_study([run])).sentences)
