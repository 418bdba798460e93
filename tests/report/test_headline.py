"""The main results in sentences."""

from dataclasses import replace

from holdfast.report.format import percent
from holdfast.report.sections.results import headline
from holdfast.report.summary import worst


def test_the_headline_ranks_and_counts(study) -> None:
    first, *rest = headline(study)
    assert first.startswith("Robust accuracy at linf eps 0.3, worst case over 2 attacks, on 500 samples: TLA ")
    means = {
        name: sum(worst(run.records, "linf", 0.3).value for run in runs) / 2 for name, runs in study.attacked().items()
    }
    assert means["TLA"] > means["AT"] > means["Plain"]
    for name, mean in means.items():
        assert f"{name} {percent(mean)} % (95 % interval" in first
    assert "mean of 2 seeds" in first
    assert any("significantly more robust" in sentence and "Plain" in sentence for sentence in rest)


def test_one_seed_is_mentioned(make_run, make_study) -> None:
    sentences = headline(make_study([make_run("a", 0, n=50), make_run("b", 0, strength=0.01, n=50)]))
    assert sentences[0].count("one seed") == 2
    assert "one seed does not show" in sentences[-1]


def test_an_insignificant_difference_is_called_one(make_run, make_study) -> None:
    run = make_run("a", 0, n=50)
    assert "a does not differ significantly from b." in headline(make_study([run, replace(run, name="b")]))


def test_seeds_that_disagree_are_reported(make_run, make_study) -> None:
    strong, weak = make_run("a", 0, n=200), make_run("b", 1, strength=0.01, n=200)
    runs = [strong, replace(strong, seed=1), replace(strong, name="b"), weak]
    assert "a differs significantly from b at some seeds only." in headline(make_study(runs))


def test_a_refused_comparison_is_explained_beside_the_other_results(make_run, make_study) -> None:
    sentences = headline(make_study([make_run("a", 0, n=20), make_run("b", 0, n=30)]))
    assert "on 20 to 30 samples" in sentences[0]
    assert sentences[1].startswith("No paired test: two models of 20 and 30 records")


def test_runs_without_a_common_seed(make_run, make_study) -> None:
    assert any("shares no seed with" in s for s in headline(make_study([make_run("a", 0, n=9), make_run("b", 1, n=9)])))


def test_a_bound_is_called_at_most(study) -> None:
    assert "TLA at most " in headline(replace(study, eps=0.2))[0]
