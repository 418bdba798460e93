"""Accuracy of each class is that of its samples alone."""

import numpy as np
import pytest

from holdfast.report.elements.table import Cell
from holdfast.report.sections import classes


def test_every_class_has_the_accuracy_of_its_samples(study) -> None:
    section = classes.section(study)
    assert section is not None
    (table,) = section.tables
    runs = study.attacked()["AT"]
    for row in table.rows:
        clean, worst = row.cells[2:4]
        assert isinstance(clean, Cell)
        assert isinstance(worst, Cell)
        masks = [run.records.columns["y"] == int(row.name) for run in runs]
        assert clean.mean == pytest.approx(
            np.mean([r.records.correct[m].mean() for r, m in zip(runs, masks, strict=True)])
        )
        assert worst.mean == pytest.approx(
            np.mean([r.records.held(0.3, "linf")[m].mean() for r, m in zip(runs, masks, strict=True)])
        )


def test_of_many_classes_the_weakest_are_shown(study, monkeypatch) -> None:
    monkeypatch.setattr(classes, "_MOST", 3)
    section = classes.section(study)
    assert section is not None
    groups = study.attacked().values()
    weakest = {k: min(classes._cell(study, runs, k).mean for runs in groups) for k in range(10)}
    shown = [int(row.name) for row in section.tables[0].rows]
    assert shown == sorted(sorted(weakest, key=lambda k: weakest[k])[:3])
    assert "The 3 weakest of 10 classes." in section.sentences[0]
