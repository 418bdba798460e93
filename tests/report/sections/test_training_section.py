"""The training log as plots, and the cost of each training as a table."""

import math
from dataclasses import replace

from holdfast.records.records import Records
from holdfast.report.sections import training
from holdfast.report.sections.training import training_plots, training_table


def test_training_shows_validation_first_and_every_run(study) -> None:
    plots = training_plots(study)
    assert [plot.title for plot in plots] == ["accuracy without attack", "accuracy under attack", "loss"]
    assert all(len(plot.figure["data"]) == len(study.runs) for plot in plots)


def test_broken_log_values_are_skipped_and_long_logs_thinned(make_run, make_study) -> None:
    rows = [{"step": s, "epoch": 0, "split": "train", "loss": float(s), "note": "x", "flag": True} for s in range(1000)]
    rows[3]["loss"] = math.nan
    rows[4]["loss"] = None
    (plot,) = training_plots(make_study([replace(make_run("a", 0, n=5), metrics=rows)]))
    (trace,) = plot.figure["data"]
    assert 200 < len(trace["x"]) <= 300
    assert trace["x"] == trace["y"]
    assert all(math.isfinite(y) for y in trace["y"])


def test_no_log_no_figure(make_run, make_study) -> None:
    assert training_plots(make_study([replace(make_run("a", 0, n=5), metrics=[])])) == []


def test_a_training_that_groups_share_is_listed_once(make_run, make_study) -> None:
    run = make_run("a", 0, n=5)
    table = training_table(make_study([replace(run, group="K = 1"), replace(run, group="K = 11")]))
    assert [column.title for column in table.columns] == [
        "Seed",
        "Training seconds",
        "Forwards",
        "Backwards",
        "Epochs",
        "Best epoch",
    ]
    assert [(row.name, row.cells) for row in table.rows] == [("a", ("0", "40", "90000", "80000", "6", "5"))]


def test_untrained_models_have_no_training_section(make_run, make_study) -> None:
    run = make_run("a", 0, n=5)
    facts = {"attacks": run.records.facts["attacks"]}
    bare = replace(run, metrics=[], records=Records(run.records.columns, facts))
    assert training.section(make_study([bare])) is None


def test_robust_overfitting_is_named(make_run, make_study) -> None:
    run = make_run("AT", 0, n=20)
    curve = [{"step": e, "epoch": e, "split": "valid", "robust": r} for e, r in enumerate((0.3, 0.51, 0.42), start=1)]
    found = training.section(make_study([replace(run, metrics=curve)]))
    assert found is not None
    assert found.findings == [
        "AT (seed 0) overfits: its validation accuracy under attack falls from 51.0 % in epoch 2 to 42.0 % in the "
        "last one."
    ]
    steady = training.section(make_study([run]))
    assert steady is not None
    assert steady.findings == []


def test_an_undefended_model_loses_no_robustness(make_run, make_study) -> None:
    curve = [{"step": e, "epoch": e, "split": "valid", "robust": r} for e, r in enumerate((0.11, 0.0), start=1)]
    found = training.section(make_study([replace(make_run("plain", 0, n=20), metrics=curve)]))
    assert found is not None
    assert found.findings == []
