"""The objectives that the benchmark compares, against closed forms."""

import sys

import numpy as np
import pytest
from bench.fits import TINY, fits, itml_objective, lmnn_objective


def test_itmls_objective_is_zero_where_the_identity_meets_all_and_known_beside_it() -> None:
    v, sign = np.diag([1.0, 2.0]), np.array([1.0, -1.0])
    assert itml_objective(np.eye(2), v, sign, 1.0, 4.0) == pytest.approx(0)
    found = itml_objective(np.diag([3.0, 1.0]), v, sign, 1.0, 8.0)
    assert found == pytest.approx((3 - np.log(3) - 1) + (3 - np.log(3) - 1) + (0.5 - np.log(0.5) - 1))


def test_lmnns_objective_of_pairs_far_apart() -> None:
    x, y = np.array([[0.0], [0.1], [9.0], [9.1]]), np.array([0, 0, 1, 1])
    assert lmnn_objective(x, y, np.eye(1)) == pytest.approx(0.5 * 4 * 0.01)


def test_without_the_peer_ours_are_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "metric_learn", None)
    found = fits(TINY)
    assert {row["learner"] for row in found["rows"]} == {
        f"holdfast {name}" for name in ("ARML", "ARML-1", "LMNN", "ITML")
    }
    assert set(found["facts"]["failed"]) == {f"metric-learn {name}" for name in ("LMNN", "ITML", "NCA")}
    assert found["headlines"] == []
