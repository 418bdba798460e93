"""Mixed precision: training passes run in bfloat16, everything else in float32."""

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Batch, Method
from holdfast.crafting.view import described, frozen, unwrapped
from holdfast.data.samplers import Pool
from holdfast.geometry import LInf, Threat
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.cure import CURE
from holdfast.methods.llr import LLR
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.methods.trades import TRADES
from holdfast.models.batch_statistics import record_batch_statistics, reuse_batch_statistics
from holdfast.models.classifier import Classifier, adapt
from holdfast.models.encoders.tiny import Tiny
from holdfast.models.heads.linear import Linear
from holdfast.models.mixed import Mixed
from holdfast.rng import Rng

CPU = torch.device("cpu")
ATTACK = PGD(threat=Threat(LInf(), 0.1), steps=2, keep="last")
METHODS: list[Method] = [
    Plain(),
    Adversarial(attack=ATTACK),
    ALP(attack=ATTACK),
    TLA(attack=ATTACK, pool=6),
    TRADES(attack=ATTACK),
    LLR(attack=ATTACK),
    CURE(),
]


@pytest.fixture
def net() -> Classifier:
    torch.manual_seed(0)
    return Classifier(Tiny((1, 8, 8), channels=4, width=8), Linear(8, 3))


@pytest.fixture
def x() -> Tensor:
    return Rng(1).uniform(torch.empty(12, 1, 8, 8))


def test_training_passes_use_autocast_and_return_float32(net: Classifier, x: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        by_hand = net.train().outputs(x)
    assert by_hand.logits.dtype == torch.bfloat16
    out = Mixed(net, CPU).train().outputs(x)
    for mine, other in ((out.features, by_hand.features), (out.logits, by_hand.logits)):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, other.float())
    assert torch.equal(Mixed(net, CPU).train()(x), out.logits)
    assert torch.equal(Mixed(net, CPU).train().outputs(x, "logits").features, out.logits)
    assert not torch.equal(net.outputs(x).logits, out.logits)
    assert not torch.is_autocast_enabled("cpu")


def test_weights_and_their_gradients_stay_float32(net: Classifier, x: Tensor) -> None:
    Mixed(net, CPU).train()(x).square().sum().backward()
    assert all(p.dtype == torch.float32 and p.grad is not None and p.grad.dtype == p.dtype for p in net.parameters())


def test_eval_mode_and_crafting_and_disabled_wrappers_use_float32(net: Classifier, x: Tensor) -> None:
    mixed, y = Mixed(net, CPU).train(), torch.arange(12) % 3
    assert unwrapped(mixed) is net
    assert described(mixed) == described(net)
    assert torch.equal(ATTACK(mixed, x, y, rng=Rng(0)), ATTACK(net, x, y, rng=Rng(0)))
    with frozen(mixed, Rng(0)) as view, frozen(net, Rng(0)) as bare:
        assert torch.equal(view.outputs(x).logits, bare.outputs(x).logits)
    assert mixed.training
    mixed.lowered = False
    assert torch.equal(mixed(x), net(x))


def batch(x: Tensor) -> Batch:
    y, index = torch.arange(len(x)) % 3, torch.arange(len(x))
    positive, pool = x.roll(3, 0), Pool(len(x), 6, 0).draw(0)
    return Batch(x, y, index, positive, Batch(x[pool], y[pool], index[pool]))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_the_loss_of_every_method_is_float32_and_near_that_of_full_precision(
    method: Method, net: Classifier, x: Tensor
) -> None:
    mixed = Mixed(net, CPU).train()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    low = method(mixed, batch(x), progress=1.0, rng=Rng(0))
    low.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    net.load_state_dict(state)
    full = method(net, batch(x), progress=1.0, rng=Rng(0))
    assert low.total.dtype == torch.float32
    assert low.parts["cross_entropy"].item() == pytest.approx(full.parts["cross_entropy"].item(), rel=0.05)
    assert low.total.item() != full.total.item()


def test_statistics_are_recorded_in_float32(net: Classifier, x: Tensor) -> None:
    """The input of the first batch norm is bfloat16; its mean and running mean must not be rounded to that."""
    seen: list[Tensor] = []
    norm = next(m for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    first = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    handle = first.register_forward_hook(lambda _, __, out: seen.append(out))
    mixed = adapt(Mixed(net, CPU).train())
    with record_batch_statistics(net) as recorded:
        mixed.outputs(x)
    handle.remove()
    assert seen[0].dtype == torch.bfloat16
    mean = seen[0].double().mean((0, 2, 3))
    assert torch.allclose(recorded[0].statistics.mean.double(), mean, rtol=1e-5, atol=1e-7)
    assert norm.running_mean is not None
    assert torch.allclose(norm.running_mean.double(), 0.1 * mean, rtol=1e-5, atol=1e-7)
    with reuse_batch_statistics(recorded):
        again = mixed.outputs(x)
    assert again.logits.isfinite().all()
