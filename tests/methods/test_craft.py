"""Properties shared by all methods that craft: warm-up of eps, and which attacks they accept."""

import by_hand
import pytest
import torch
from torch import nn

from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Batch
from holdfast.crafting.arithmetic import arithmetic
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.llr import LLR
from holdfast.methods.tla import TLA
from holdfast.methods.trades import TRADES
from holdfast.models.classifier import Classifier

METHODS = [Adversarial, ALP, TLA, TRADES, LLR]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("warmup", "progress", "share"),
    [(0.0, 0.0, 1.0), (0.5, 0.0, 0.0), (0.5, 0.125, 0.25), (0.5, 0.5, 1.0), (0.5, 0.9, 1.0), (1.0, 0.75, 0.75)],
)
def test_eps_grows_linearly_during_warmup(method, warmup, progress, share, rng):
    attack = by_hand.Shift(threat=by_hand.threat())
    method(attack=attack, warmup=warmup)(by_hand.network(), by_hand.samples(), progress=progress, rng=rng)
    assert [eps for eps, _ in attack.seen] == pytest.approx([share * by_hand.EPS])


@pytest.mark.parametrize("method", METHODS)
def test_pgd_at_the_start_of_warmup_returns_clean_samples(method, rng):
    model, batch = by_hand.network(), by_hand.samples()
    attack = PGD(threat=by_hand.threat(), steps=2, step=0.05, keep="last")
    warm = method(attack=attack, warmup=0.5)(model, batch, progress=0.0, rng=rng).total
    clean = method(attack=by_hand.Shift(threat=by_hand.threat(0.0)))(model, batch, progress=0.0, rng=rng).total
    assert warm.item() == pytest.approx(clean.item(), rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("warmup", [-0.1, 1.5, float("nan")])
def test_warmup_outside_zero_to_one_is_refused(method, warmup):
    with pytest.raises(ValueError, match=r"share of training in \[0, 1\]"):
        method(attack=by_hand.Shift(threat=by_hand.threat()), warmup=warmup)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep", ["fooled", "closest"])
def test_attack_that_stops_at_the_boundary_is_refused(method, keep):
    with pytest.raises(ValueError, match=f'keep="{keep}" stops at the boundary'):
        method(attack=BIM(threat=by_hand.threat(), keep=keep))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep", ["last", "worst"])
def test_keep_worst_is_accepted_unless_the_method_replaces_the_loss(method, keep):
    attack = PGD(threat=by_hand.threat(), keep=keep)
    if keep == "worst" and method in (TRADES, LLR):
        with pytest.raises(ValueError, match=r'keep is "worst" but .* climbs a loss of its own; use keep="last"'):
            method(attack=attack)
    else:
        assert method(attack=attack).attack.keep == keep


@pytest.mark.parametrize("method", [TRADES, LLR])
@pytest.mark.parametrize("attack", [BIM, CWLinf, Noise])
def test_methods_that_replace_the_loss_refuse_attacks_without_loss_and_start(method, attack):
    """BIM, for one, starts at x, where neither loss has a gradient."""
    keep = {} if attack is Noise else {"keep": "last"}
    with pytest.raises(ValueError, match=f"{attack.__name__} has no choice of loss and start, .* give it PGD or FGSM"):
        method(attack=attack(threat=by_hand.threat(), **keep))


@pytest.mark.parametrize("method", [TRADES, LLR])
def test_fgsm_is_accepted(method, rng):
    model, batch = by_hand.network(), by_hand.samples()
    terms = method(attack=FGSM(threat=by_hand.threat()))(model, batch, progress=1.0, rng=rng)
    assert len(terms.parts) > 1
    assert all(part > 0 for part in terms.parts.values())


@pytest.mark.parametrize(("method", "same"), [(TRADES, True), (LLR, True), (Adversarial, False)])
def test_losses_that_compare_two_passes_are_crafted_in_float32(method, same, rng):
    """Also when attacks use bfloat16, whose rounding error is larger than the differences that these losses measure."""
    found = []
    for name in ("float32", "bfloat16"):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Softplus())
        model, given = Classifier(body, nn.Linear(16, 3)).train(), by_hand.samples()
        batch = Batch(given.x.float(), given.y, given.index)
        attack = PGD(threat=by_hand.threat(), steps=3, step=0.01, keep="last")
        with arithmetic(name):
            found.append(method(attack=attack)(model, batch, progress=1.0, rng=rng).seen[-1].x)
    assert torch.equal(*found) == same


WEIGHTS = [(ALP, "weight"), (TLA, "lambda1"), (TLA, "lambda2"), (TLA, "matching"), (TRADES, "beta"), (LLR, "mu")]


@pytest.mark.parametrize(("method", "name"), WEIGHTS)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_weight_that_is_negative_or_not_finite_is_refused(method, name, value):
    attack = by_hand.Shift(threat=by_hand.threat())
    with pytest.raises(ValueError, match=f"{name} is {value} but the weight of a term is a finite number of zero"):
        method(attack=attack, **{name: value})


def train_mode_pgd(model, x, y, steps):
    """PGD written out for a model in train mode, where every pass of torch's batch norm updates its statistics."""
    x_adv = x.clone()
    for _ in range(steps):
        x_adv.requires_grad_()
        (grad,) = torch.autograd.grad(nn.functional.cross_entropy(model(x_adv), y, reduction="sum"), x_adv)
        x_adv = (x_adv.detach() + 0.04 * grad.sign()).clamp(x - by_hand.EPS, x + by_hand.EPS).clamp(0, 1)
    return x_adv


def many(n):
    """n samples, more than an attack takes at a time, with positives and a pool."""
    given = by_hand.samples()
    x, y = (by_hand.fixed(n, 4, seed=3) * 0.3 + 0.5).clamp(0, 1), torch.arange(n) % 3
    return Batch(x, y, torch.arange(n), x.flip(1), given.pool)


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", [Adversarial, ALP, TLA])
def test_batch_statistics_craft_as_torch_does_in_train_mode(method, training, n, rng):
    model, twin = (by_hand.batch_norm_network().train(training) for _ in range(2))
    before, batch = model.training, many(n)
    attack = PGD(threat=by_hand.threat(), steps=4, step=0.04, start="clean", keep="last")
    terms = method(attack=attack, batch_statistics=True)(model, batch, progress=1.0, rng=rng)
    twin.train()
    x_adv = train_mode_pgd(twin, batch.x, batch.y, steps=4)
    torch.testing.assert_close(terms.seen[-1].x, x_adv, rtol=0, atol=1e-12)
    assert model.training == before
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    if method is Adversarial:
        twin.train(training)
        logits = twin(x_adv)
        assert terms.total.item() == pytest.approx(by_hand.cross_entropy(logits.detach().numpy(), batch.y), rel=1e-10)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, twin.state_dict()[name], msg=name)


def test_batch_statistics_are_used_only_if_asked_for(rng):
    found = []
    for asked in (False, True):
        model = by_hand.batch_norm_network().train()
        attack = PGD(threat=by_hand.threat(), steps=4, step=0.04, start="clean", keep="last")
        Adversarial(attack=attack, batch_statistics=asked)(model, by_hand.samples(), progress=1.0, rng=rng)
        found.append(int(model.encoder[1].num_batches_tracked))
    assert found == [1, 5]  # the training pass alone, or four steps and the training pass


def test_batch_statistics_of_norms_without_running_ones(rng):
    model = Classifier(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)), nn.Linear(3, 3))
    by_hand.fill(model)
    attack = PGD(threat=by_hand.threat(), steps=2, step=0.04, start="clean", keep="last")
    terms = Adversarial(attack=attack, batch_statistics=True)(model, by_hand.samples(), progress=1.0, rng=rng)
    expected = train_mode_pgd(model, by_hand.samples().x, by_hand.samples().y, steps=2)
    torch.testing.assert_close(terms.seen[-1].x, expected, rtol=0, atol=1e-12)
