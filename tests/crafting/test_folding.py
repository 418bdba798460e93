"""Folding: the outputs of the model itself, or a reason why it is not folded."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from holdfast import PGD, Classifier, LInf, Rng, Threat
from holdfast.crafting import folding
from holdfast.crafting.view import crafting, described, frozen
from holdfast.models.encoders.lenet import LeNet
from holdfast.models.encoders.mlp import MLP
from holdfast.models.encoders.tiny import Tiny

SHAPE = (1, 8, 8)


def used(model: nn.Module) -> nn.Module:
    """The model with batch norm statistics and weights that are not those of a fresh one."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(16, *SHAPE, dtype=next(model.parameters()).dtype))
    return model


def conv(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), *more, nn.Flatten(), nn.Linear(144, 10))


class Counting(nn.Module):
    """Gives other logits from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv(nn.ReLU())
        self._calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        return self.net(x) * (1 if self._calls < 3 else -1)


class Drifting(nn.Module):
    """Moves a buffer of its own at every call, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv(nn.ReLU())
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.net(x) + self.seen


class Branching(nn.Module):
    """Decides by its data."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv(nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if x.mean() > 0.5 else -self.net(x)


class Noisy(nn.Module):
    """Adds what tracing would freeze."""

    def __init__(self, noise: Callable[[], torch.Tensor | float]) -> None:
        super().__init__()
        self.net, self.noise = conv(nn.ReLU()), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.noise()


class Shared(nn.Module):
    """Uses one convolution twice, once without batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(144, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.norm(self.conv(x)) + self.conv(x)).flatten(1))


@pytest.mark.parametrize(
    "model",
    [
        Classifier(MLP(SHAPE, width=12), nn.Linear(12, 10)),
        Classifier(LeNet(SHAPE, width=12), nn.Linear(12, 10)),
        Classifier(Tiny(SHAPE, channels=3, width=12), nn.Linear(12, 10)),
        conv(nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 10, 6), nn.Flatten()),
    ],
    ids=["mlp", "lenet", "tiny", "sequential", "no linear"],
)
def test_folded_models_have_the_outputs_and_gradients_of_the_model(model, rng) -> None:
    model = used(model.double())
    x = torch.rand(9, *SHAPE, dtype=torch.float64, requires_grad=True)
    assert described(model) == {"folded": True, "arithmetic": "float64"}
    with frozen(model, rng) as plain:
        expected = plain.outputs(x)
        (slope,) = torch.autograd.grad(expected.logits.square().sum(), x)
    with crafting(model, rng) as fast:
        found = fast.outputs(x)
        (grad,) = torch.autograd.grad(found.logits.square().sum(), x)
        assert type(fast).__name__ == "_Fast"
    for a, b in zip((*found, grad), (*expected, slope), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_folding_follows_the_weights_and_leaves_them_alone(rng) -> None:
    model, x = used(conv(nn.ReLU())), torch.rand(5, *SHAPE)
    with crafting(model, rng) as fast:
        first = fast(x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model[0].weight.data.mul_(2)  # .data: no version counter tells of this
    model[1].running_mean.add_(1)
    with crafting(model, rng) as fast, frozen(model, rng) as plain:
        assert torch.allclose(fast(x), plain(x), atol=1e-5)
        assert not torch.allclose(fast(x), first, atol=1e-2)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items() if name[0] not in "01")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "it has no batch norm"),
        (nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)), "no batch norm follows a layer directly"),
        (Branching(), "it cannot be traced"),
        (Counting(), "its forward pass changes its own state"),
        (Drifting(), "its forward pass changes its own state"),
        (Noisy(lambda: torch.randn(10)), "it makes tensors of its own in the forward pass"),
        (Noisy(random.random), "its forward pass draws random numbers"),
        (Shared(), "no batch norm follows a layer directly"),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(144, 10)),
            "no batch norm follows a layer directly",
        ),
        (
            nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(5, 10)),
            "no batch norm follows a layer directly",  # along the axis of the layer's outputs
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_models_that_cannot_be_folded_say_why_and_are_called_as_they_are(model, reason, rng) -> None:
    torch.manual_seed(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told = described(model)
    assert told["folded"] is False
    assert str(told["reason"]).startswith(reason)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with crafting(model, rng) as view:
        assert type(view).__name__ == "Adapted"


def test_hooks_are_honored(rng) -> None:
    model, x = used(conv(nn.ReLU())), torch.rand(5, *SHAPE)
    assert described(model) == {"folded": True, "arithmetic": "float32"}
    handle = model[1].register_forward_hook(lambda _module, _args, out: 2 * out)
    assert described(model) == {"folded": False, "reason": "it has hooks", "arithmetic": "float32"}
    with crafting(model, rng) as view, frozen(model, rng) as plain:
        assert torch.equal(view(x), plain(x))
    handle.remove()
    assert described(model) == {"folded": True, "arithmetic": "float32"}


def test_a_replaced_forward_pass_is_honored() -> None:
    model = used(conv(nn.ReLU()))
    assert described(model)["folded"]
    model[2].forward = lambda x: x.sigmoid()
    assert described(model)["reason"] == "it has a forward pass that is not its class's"


def test_global_hooks_are_honored() -> None:
    model = used(conv(nn.ReLU()))
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        assert described(model)["reason"] == "it has hooks"
    finally:
        handle.remove()
    assert described(model)["folded"]


def test_autocast_is_left_to_the_model() -> None:
    model = used(conv(nn.ReLU()))
    with torch.autocast("cpu", torch.bfloat16):
        assert described(model)["reason"] == "autocast is on"
    assert described(model)["folded"]


def test_a_model_may_change_its_type_between_attacks(rng) -> None:
    model, x, y = used(conv(nn.ReLU())), torch.rand(5, *SHAPE), torch.zeros(5, dtype=torch.int64)
    attack = PGD(threat=Threat(LInf(), 0.1), steps=2)
    attack(model, x, y, rng=rng)
    assert attack(model.double(), x.double(), y, rng=rng).dtype == torch.float64
    assert described(model) == {"folded": True, "arithmetic": "float64"}


def test_a_first_attack_in_inference_mode_decides_nothing_for_later(rng) -> None:
    model, x, y = used(conv(nn.ReLU())), torch.rand(5, *SHAPE), torch.zeros(5, dtype=torch.int64)
    attack = PGD(threat=Threat(LInf(), 0.1), steps=2)
    with torch.inference_mode():
        first = attack(model, x, y, rng=rng)
    assert torch.equal(first, attack(model, x, y, rng=rng))
    assert described(model)["folded"]


def test_tracing_draws_no_random_numbers() -> None:
    model, before = used(Noisy(lambda: torch.randn(10))), torch.get_rng_state()
    described(model)
    assert torch.equal(before, torch.get_rng_state())


def test_images_may_come_flat(rng) -> None:
    model = used(nn.Sequential(nn.Flatten(), nn.Unflatten(1, SHAPE), conv(nn.ReLU())))
    x = torch.rand(5, 64)
    with crafting(model, rng) as fast, frozen(model, rng) as plain:
        assert torch.allclose(fast(x), plain(x), atol=1e-5)
    assert described(model)["folded"]


@dataclass
class Answer:
    logits: torch.Tensor


class Answering(nn.Module):
    """Gives an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv(nn.ReLU())

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(self.net(x))


def test_a_folded_form_that_fails_is_not_used(rng) -> None:
    model, x = Answering(), torch.rand(5, *SHAPE)
    with crafting(model, rng) as fast, frozen(model, rng) as plain:
        assert torch.equal(fast(x), plain(x))
    assert described(model)["reason"] == "folded, it fails (AttributeError)"


def test_what_is_described_is_the_last_use(rng) -> None:
    model, x = used(conv(nn.ReLU())), torch.rand(5, *SHAPE)
    for factor, folds in ((torch.nan, False), (1.0, True)):
        model[4].bias.data = torch.full((10,), factor)
        with crafting(model, rng) as view:
            view(x)
        assert described(model)["folded"] is folds


def test_a_layer_put_in_later_is_seen(rng) -> None:
    model, x = used(conv(nn.ReLU())), torch.rand(5, *SHAPE)
    described(model)
    model[2] = nn.Tanh()
    with crafting(model, rng) as view, frozen(model, rng) as plain:
        assert torch.allclose(view(x), plain(x), atol=1e-5)


def test_what_tracing_froze_is_caught_by_comparison(rng) -> None:
    numbers = iter(range(100))
    model = used(Noisy(lambda: next(numbers)))
    x, y = torch.rand(6, *SHAPE), torch.zeros(6, dtype=torch.int64)
    assert described(model) == {"folded": True, "arithmetic": "float32"}
    PGD(threat=Threat(LInf(), 0.1), steps=2)(model, x, y, rng=rng)
    reason = "folded, it gives other outputs"
    assert described(model) == {"folded": False, "reason": reason, "arithmetic": "float32"}


def test_agree_is_relative_to_the_size_of_the_outputs() -> None:
    a = torch.tensor([[1000.0, 0.0]])
    assert folding.agree(a + 0.5, a)
    assert not folding.agree(a + 2.0, a)
    assert not folding.agree(torch.tensor([[torch.nan, 0.0]]), a)


def test_same_direction_counts_signs_where_gradients_are_more_than_noise() -> None:
    b = torch.linspace(-1, 1, 100)
    some, many = b.clone(), b.clone()
    some[:10], many[:11] = 0, 0
    assert folding.same_direction(some, b)
    assert not folding.same_direction(many, b)
    noise = torch.cat([b, torch.full((50,), 1e-8)])
    assert folding.same_direction(torch.cat([b, -noise[100:]]), noise)


def test_an_attack_on_a_folded_model_equals_one_on_the_model_itself(rng, monkeypatch) -> None:
    model = used(Classifier(Tiny(SHAPE, channels=3, width=12), nn.Linear(12, 10))).double()
    x, y = torch.rand(12, *SHAPE, dtype=torch.float64), torch.arange(12) % 10
    attack = PGD(threat=Threat(LInf(), 0.1), steps=5, keep="last")
    fast = attack(model, x, y, rng=Rng(3))
    monkeypatch.setattr(folding, "folded", lambda model: "not today")
    assert torch.allclose(fast, attack(model, x, y, rng=Rng(3)), atol=1e-9)


@pytest.mark.parametrize("change", ["rows", "eps", "stride", "padding"])
def test_changes_between_attacks_are_followed(change, rng) -> None:
    """Also where nothing tells of it: rows that change places, plain settings of layers."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1)
    model, x = nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, 4)).eval(), rng.uniform(torch.empty(5, 3, 8, 8))
    for _ in range(3):  # by now contents are known
        with crafting(model, rng) as view:
            view.outputs(x)
    if change == "rows":
        model[2].weight.data.copy_(model[2].weight.data.flip(0))
    elif change == "eps":
        model[3].eps = 0.5
    else:
        setattr(model[0], change, (2, 2))
    slopes = []
    with crafting(model, rng) as fast, frozen(model, rng) as plain:
        for view in (fast, plain):
            here = x.clone().requires_grad_()
            slopes += torch.autograd.grad(view.outputs(here).logits.square().sum(), here)
    assert torch.allclose(*slopes, rtol=1e-3, atol=1e-6)
