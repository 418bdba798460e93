"""Methods on a hypersphere head, compared with the losses of the paper: a margin in training, none in crafting."""

import gc
import weakref
from functools import partial

import by_hand
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn import functional as F

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Rows
from holdfast.losses.classification import cross_entropy
from holdfast.methods._cross_entropy import hypersphere_of
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.cure import CURE
from holdfast.methods.llr import LLR
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.methods.trades import TRADES
from holdfast.models.classifier import Classifier, adapt
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.models.mixed import Mixed
from holdfast.rng import Rng

S, M = 12.0, 0.3


def network(margin=M):
    model = Classifier(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), Hypersphere(3, 3, scale=S, margin=margin))
    by_hand.fill(model)
    return model


def cosines(model, x):
    z = torch.tanh(F.linear(x, model.encoder[0].weight, model.encoder[0].bias))
    return F.normalize(z) @ F.normalize(model.head.weight).T


def he(c, y):
    """HE(x) of the paper: the cross entropy of s·(c - m·onehot(y))."""
    return F.cross_entropy(S * (c - M * F.one_hot(y, 3).double()), y)


def stub():
    return by_hand.Shift(threat=by_hand.threat())


class Named(nn.Module):
    """Layers registered by name in the given order, and a function for the forward pass."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.run(self, x)


def sphere(width=4, classes=3, **options):
    return Hypersphere(width, classes, scale=S, margin=M, **options)


NOT_THE_HEAD = {
    "narrow": (lambda: nn.Sequential(Hypersphere(4, 5), nn.Tanh(), nn.Linear(5, 3)), 5),
    "as wide as the logits": (lambda: nn.Sequential(sphere(), nn.Tanh(), nn.Linear(3, 3)), 3),
    "followed by a division": (lambda: Named(lambda net, x: net.head(x) / S, head=sphere()), 3),
    "followed by an in-place layer": (lambda: nn.Sequential(sphere(), nn.LeakyReLU(inplace=True)), 3),
    "unused": (lambda: Named(lambda net, x: net.last(x), last=nn.Linear(4, 3), head=sphere()), 3),
}
OTHER = {"scale": 3.0, "margin": 0.7}
THE_HEAD = {
    "last": lambda: nn.Sequential(nn.Linear(4, 4), sphere()),
    "alone": sphere,
    "another layer is registered later": lambda: Named(
        lambda net, x: net.head(x), head=sphere(), aux=Hypersphere(4, 7, **OTHER)
    ),
    "another layer of its size is registered later": lambda: Named(
        lambda net, x: net.head(x), head=sphere(), aux=Hypersphere(4, 3, **OTHER)
    ),
    "another layer runs before": lambda: Named(
        lambda net, x: net.head(net.mid(x)), head=sphere(), mid=Hypersphere(4, 4, **OTHER)
    ),
    "cast to another dtype": lambda: Named(lambda net, x: net.head(x.float()).double(), head=sphere().float()),
    "with dropout": lambda: nn.Sequential(nn.Dropout(0.5), sphere()),
}


@pytest.mark.parametrize("method", [Plain(), ALP(attack=stub()), LLR(attack=stub())])
@pytest.mark.parametrize("place", NOT_THE_HEAD)
def test_hypersphere_layer_that_is_not_the_head_is_refused(place, method, rng):
    make, outputs = NOT_THE_HEAD[place]
    message = rf"layer with {outputs} outputs, but its 3 logits do not come from it; .* place of the last layer$"
    with pytest.raises(ValueError, match=message):
        method(make().double(), by_hand.samples(), progress=0.5, rng=rng)


@pytest.mark.parametrize("place", THE_HEAD)
def test_head_that_computes_the_logits_is_found_without_side_effects(place):
    model, batch = THE_HEAD[place](), by_hand.samples()
    if place != "cast to another dtype":
        model.double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    out = adapt(model.train()).outputs(batch.x)
    state = torch.get_rng_state()
    assert hypersphere_of(model, out).scale == S
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert Plain()(model, batch, progress=0.5, rng=Rng(0)).total.item() > 0


def test_head_is_searched_once_and_again_when_it_is_replaced():
    model, x = Classifier(nn.Linear(4, 5), nn.Linear(5, 3)), torch.rand(6, 4)
    passes = by_hand.Passes().watch(model)
    assert hypersphere_of(model, model.outputs(x)) is None
    for scale in (5.0, 7.0):
        model.head = Hypersphere.instead_of(model.head, scale=scale)
        for _ in range(3):
            assert hypersphere_of(model, model.outputs(x)) is model.head
    assert passes.training.count(False) == 2  # one search per head, in eval mode
    assert passes.training.count(True) == 7


@pytest.mark.parametrize("options", [{}, {"feature_norm": False}])
def test_head_is_found_inside_the_wrappers_of_training(options):
    net = Classifier(nn.Linear(4, 4), sphere(**options))
    mixed = Mixed(net, torch.device("cpu")).train()
    model = Fabric(accelerator="cpu", devices=1).setup_module(mixed)
    model.mark_forward_method("outputs")
    assert hypersphere_of(model, model.outputs(torch.rand(6, 4))) is net.head


def test_cache_does_not_keep_a_model_alive():
    model = sphere()
    assert hypersphere_of(model, adapt(model).outputs(torch.rand(6, 4))) is model
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_plain_and_adversarial_training_use_the_margin(rng):
    model, batch = network(), by_hand.samples()
    plain = Plain()(model, batch, progress=0.5, rng=rng).total
    assert plain.item() == pytest.approx(he(cosines(model, batch.x), batch.y).item(), rel=1e-12)
    total = Adversarial(attack=stub())(model, batch, progress=0.5, rng=rng).total
    assert total.item() == pytest.approx(he(cosines(model, by_hand.shifted(batch.x)), batch.y).item(), rel=1e-12)


def test_alp_pairs_unscaled_cosines(rng):
    model, batch = network(), by_hand.samples()
    clean, moved = cosines(model, batch.x), cosines(model, by_hand.shifted(batch.x))
    expected = 0.5 * he(clean, batch.y) + 0.5 * he(moved, batch.y) + 0.7 * F.mse_loss(clean, moved)
    total = ALP(attack=stub(), weight=0.7)(model, batch, progress=0.5, rng=rng).total
    assert total.item() == pytest.approx(expected.item(), rel=1e-12)


def test_trades_has_the_margin_in_its_cross_entropy_only(rng):
    model, batch = network(), by_hand.samples()
    clean, moved = S * cosines(model, batch.x), S * cosines(model, by_hand.shifted(batch.x))
    divergence = F.kl_div(moved.log_softmax(1), clean.softmax(1), reduction="batchmean")
    total = TRADES(attack=stub(), beta=6.0)(model, batch, progress=0.5, rng=rng).total
    assert total.item() == pytest.approx((he(clean / S, batch.y) + 6 * divergence).item(), rel=1e-12)


@pytest.mark.parametrize("make", [lambda: LLR(attack=stub()), CURE, lambda: TLA(attack=stub(), noise="none")])
def test_other_terms_do_not_depend_on_the_margin(make, rng):
    """Gap, curvature and triplet equal those of the same model without a margin; the cross entropy does not."""
    batch, method = by_hand.samples(), make()
    with_margin, without = (method(network(m), batch, progress=0.5, rng=rng) for m in (M, 0.0))
    for part in with_margin.parts:
        same = with_margin.parts[part].item() == pytest.approx(without.parts[part].item(), rel=1e-12)
        assert same == (part != "cross_entropy"), part


def climbed(model, batch, margin, steps=3, step=0.04):
    x_adv = batch.x
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        z = S * (cosines(model, x_adv) - margin * F.one_hot(batch.y, 3).double())
        (grad,) = torch.autograd.grad(F.cross_entropy(z, batch.y, reduction="sum"), x_adv)
        x_adv = (x_adv + step * grad.sign()).clamp(batch.x - by_hand.EPS, batch.x + by_hand.EPS).clamp(0, 1)
    return x_adv.detach()


def test_attack_uses_no_margin_unless_its_loss_has_one(rng):
    model, batch = network(), by_hand.samples()
    plain = PGD(threat=by_hand.threat(), steps=3, step=0.04, start="clean", keep="last")
    with_margin = PGD(
        threat=by_hand.threat(),
        steps=3,
        step=0.04,
        start="clean",
        keep="last",
        loss=partial(cross_entropy, margin=S * M),
    )
    for attack, margin in ((plain, 0.0), (with_margin, M)):
        x_adv = Adversarial(attack=attack)(model, batch, progress=1.0, rng=rng).seen[-1].x
        torch.testing.assert_close(x_adv, climbed(model, batch, margin), rtol=0, atol=1e-12)


def test_temperature_gives_the_loss_of_unscaled_cosines(rng):
    model, batch = network(), by_hand.samples()
    out = model.outputs(batch.x)
    found = cross_entropy(out, Rows(batch.y, batch.index), temperature=S)
    expected = F.cross_entropy(cosines(model, batch.x), batch.y, reduction="none")
    torch.testing.assert_close(found, expected)
