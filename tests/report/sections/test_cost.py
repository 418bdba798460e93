"""Costs are means over seeds, and costs that do not occur are not drawn."""

from dataclasses import replace

import numpy as np

from holdfast.records.records import Records
from holdfast.report.sections.cost import cost_plots, mean_spend, section
from holdfast.report.study import Run


def test_cost_is_the_mean_over_seeds(study) -> None:
    runs = study.attacked()["AT"]
    assert mean_spend(runs, "PGD-40").seconds == 12.5
    assert mean_spend(runs, "nothing") is None
    seconds = cost_plots(study)[0].figure["data"]
    assert [trace["name"] for trace in seconds][:2] == ["training", "clean"]
    assert seconds[0]["x"] == [40.0, 40.0, 40.0]


def test_certificates_cost_seconds_only(make_study) -> None:
    columns = {"index": np.arange(4), "y": np.zeros(4, int), "label": np.zeros(4, int)}
    columns |= {"radius:l2:neighbors": np.ones(4), "upper:l2:neighbors": np.ones(4)}
    records = Records(columns, {"training": {"seconds": 3.0}, "certifier": {"seconds": 2.0}})
    run = Run(name="NCA", method="nca", seed=0, records=records, group="K = 1")
    study = replace(make_study([run]), norm=None, eps=None)
    assert [plot.title for plot in cost_plots(study)] == ["Seconds"]
    (table,) = section(study).tables
    assert [(row.name, row.cells[:3]) for row in table.rows] == [
        ("NCA, K = 1", ("training", "3.0", "-")),
        ("NCA, K = 1", ("certificate", "2.0", "0.5000")),
    ]
