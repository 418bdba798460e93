"""What the section on features says beside its tables."""

from collections.abc import Callable
from typing import Any

import pytest

import holdfast.report.sections.features as features
from holdfast.statistics import Estimate, Share


def of(values: dict[str, float]) -> Callable[..., Estimate]:
    return lambda run, **_: Estimate(values[run], values[run], values[run], 9)


@pytest.mark.parametrize(
    ("accuracy", "within", "said"),
    [
        ({"a": 1, "b": 5, "c": 6}, {"a": 0.1, "b": 0.2, "c": 0.3}, True),
        ({"a": 7, "b": 5, "c": 6}, {"a": 0.1, "b": 0.2, "c": 0.3}, False),  # the most accurate has the largest r
        ({"a": 1, "b": 5, "c": 6}, {"a": 0.4, "b": 0.2, "c": 0.3}, False),  # its classes are not narrow
    ],
)
def test_a_weak_model_with_the_largest_ratio_is_explained_by_its_narrow_classes(
    monkeypatch: pytest.MonkeyPatch, accuracy: Any, within: Any, said: bool
) -> None:
    monkeypatch.setattr(features, "separated", lambda run, level: run)
    monkeypatch.setattr(features, "common_classes", lambda runs, level: [0])
    monkeypatch.setattr(features, "_r", of({"a": 2.0, "b": 1.5, "c": 1.0}))
    monkeypatch.setattr(features, "_accuracy", lambda run, level: Share(accuracy[run], 9))
    monkeypatch.setattr(features, "_within", of(within))
    found = list(features._narrow({name: [name] for name in "abc"}))  # type: ignore[list-item]
    assert bool(found) == said
    if said:
        assert "a has the largest r although it has the lowest accuracy, because its classes are narrow" in found[0]
        assert "within a class is 0.100, that of the other models 0.200 to 0.300." in found[0]
