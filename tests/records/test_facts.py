import json
import math

import numpy as np
import pytest

from holdfast.records.facts import AttackFacts, Draws, Spend


@pytest.mark.parametrize("eps", [0.0, 8 / 255, math.inf])
def test_attack_facts_survive_json(eps: float) -> None:
    attack = AttackFacts(norm="l2", eps=eps, minimal=True, seconds=1.5, forwards=3, outside=2, settings={"steps": 9})
    text = json.dumps(attack.facts(), allow_nan=False)
    assert AttackFacts.read(json.loads(text)) == attack


def test_draws_survive_json_and_are_absent_without_randomness() -> None:
    attack = AttackFacts(norm="l2", eps=1.0, draws=Draws.of(np.array([[True, False], [True, True], [False, False]])))
    assert attack.draws == Draws(2, 0.5, pytest.approx(1 / 3))
    assert AttackFacts.read(json.loads(json.dumps(attack.facts()))) == attack
    assert "draws" not in AttackFacts(norm="l2", eps=1.0).facts()


def test_keys_of_a_later_version_are_ignored() -> None:
    assert AttackFacts.read({"norm": "l2", "eps": 1, "queries": 7}) == AttackFacts(norm="l2", eps=1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eps": 1}, "lack norm"),
        ({"norm": "l2"}, "lack eps"),
        ({"norm": "a:b", "eps": 1}, "':'"),
        ({"norm": "l2", "eps": -1}, "-1"),
    ],
)
def test_bad_attack_facts_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttackFacts.read(given)


def test_attack_measures_its_eps_and_a_minimal_norm_attack_all_smaller_ones() -> None:
    fixed, minimal = (AttackFacts(norm="l2", eps=1.0, minimal=kind) for kind in (False, True))
    assert [fixed.measured_at(eps) for eps in (0.5, 1.0, 1.5)] == [False, True, False]
    assert [minimal.measured_at(eps) for eps in (0.5, 1.0, 1.5)] == [True, True, False]


def test_missing_cost_counts_as_zero() -> None:
    assert Spend.read({"seconds": 2}) == Spend(2.0, 0, 0)
