"""What the methods that craft have in common: warm-up and refusals."""

import by_hand
import pytest

from holdfast.attacks.bim import BIM
from holdfast.attacks.pgd import PGD
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.tla import TLA

METHODS = [Adversarial, ALP, TLA]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("warmup", "progress", "share"),
    [(0.0, 0.0, 1.0), (0.5, 0.0, 0.0), (0.5, 0.125, 0.25), (0.5, 0.5, 1.0), (0.5, 0.9, 1.0), (1.0, 0.75, 0.75)],
)
def test_eps_grows_linearly_over_the_warm_up(method, warmup, progress, share, rng):
    attack = by_hand.Shift(threat=by_hand.threat())
    method(attack=attack, warmup=warmup)(by_hand.network(), by_hand.samples(), progress=progress, rng=rng)
    assert [eps for eps, _ in attack.seen] == pytest.approx([share * by_hand.EPS])


@pytest.mark.parametrize("method", METHODS)
def test_a_real_attack_survives_the_start_of_the_warm_up(method, rng):
    model, batch = by_hand.network(), by_hand.samples()
    attack = PGD(threat=by_hand.threat(), steps=2, step=0.05, keep="last")
    warm = method(attack=attack, warmup=0.5)(model, batch, progress=0.0, rng=rng).total
    clean = method(attack=by_hand.Shift(threat=by_hand.threat(0.0)))(model, batch, progress=0.0, rng=rng).total
    assert warm.item() == pytest.approx(clean.item(), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("warmup", [-0.1, 1.5, float("nan")])
def test_a_warm_up_outside_training_is_refused(method, warmup):
    with pytest.raises(ValueError, match=r"share of training in \[0, 1\]"):
        method(attack=by_hand.Shift(threat=by_hand.threat()), warmup=warmup)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep", ["fooled", "closest"])
def test_an_attack_that_stops_at_the_boundary_is_refused(method, keep):
    with pytest.raises(ValueError, match=f'keep="{keep}" stops at the boundary'):
        method(attack=BIM(threat=by_hand.threat(), keep=keep))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep", ["last", "worst"])
def test_other_attacks_are_taken(method, keep):
    assert method(attack=BIM(threat=by_hand.threat(), keep=keep)).attack.keep == keep
