"""Tracing: what a trace does not show is noticed, and attacks follow the gradients of the network itself."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from holdfast import PGD, Classifier, LInf, Outputs, Rng, Threat, adapt, arithmetic
from holdfast.crafting.tracing import trace
from holdfast.crafting.view import crafting, described, frozen, unwrapped

SHAPE = (3, 8, 8)


def images(n: int = 6) -> Tensor:
    return Rng(5).uniform(torch.empty(n, *SHAPE))


class Net(nn.Module):
    """A convolution with batch norm, something in between, and a linear layer."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.relu, *more: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.more, self.between, self.fc = nn.Sequential(*more), between, nn.Linear(128, 5)
        self.norm.running_mean.uniform_(-0.3, 0.3)
        self.norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.between(self.more(self.norm(self.conv(x)))).flatten(1))


def logits_and_slope(view: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    out = view(x)
    (slope,) = torch.autograd.grad(out.square().sum(), x)
    return out.detach(), slope


def follows(model: nn.Module, x: Tensor | None = None) -> bool:
    """Whether the crafting view has the logits and the gradients of the model itself; whether it is a fast one."""
    x = images() if x is None else x
    with arithmetic("float32"):
        with frozen(model, Rng(0)) as plain:
            own = logits_and_slope(plain, x)
        with crafting(model, Rng(0)) as view:
            found = logits_and_slope(view, x)
        for a, b in zip(found, own, strict=True):
            assert (a - b).abs().max() <= 1e-4 * b.abs().max()
        return bool(described(model)["folded"])


class Steps(torch.autograd.Function):
    """Rounds, with a custom backward that lets the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Gate(nn.Module):
    """Weighs its input with something that is under no_grad."""

    def __init__(self, all_of_it: bool = False) -> None:
        super().__init__()
        self.all_of_it = all_of_it

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = x.sigmoid()
        return gate if self.all_of_it else gate * x


@pytest.mark.parametrize("between", [Steps.apply, Gate()], ids=["custom backward", "no_grad"])
@pytest.mark.parametrize("numbers", ["float32", "bfloat16"])
def test_gradients_that_a_trace_does_not_have(between: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 2.0)
    model, attack = Net(between), PGD(threat=Threat(LInf(), 0.1), steps=5, keep="last")
    x, y = images(), torch.arange(6) % 5
    assert not follows(model)
    with arithmetic(numbers):
        found = attack(model, x, y, rng=Rng(1))
        assert described(model)["reason"] == "traced, it has other gradients"
    assert (found - x).abs().amax((1, 2, 3)).min() > 0.05
    monkeypatch.setattr("holdfast.crafting.view._fastest", lambda model: "not today")
    assert torch.allclose(found, attack(model, x, y, rng=Rng(1)), atol=1e-6)


def test_a_network_without_gradients_is_refused_as_ever() -> None:
    attack = PGD(threat=Threat(LInf(), 0.1), steps=2)
    with pytest.raises(ValueError, match="the loss does not depend on the input through autograd"):
        attack(Net(Gate(all_of_it=True)), images(), torch.arange(6) % 5, rng=Rng(0))


def test_a_trace_is_compared_until_it_is_found_faithful(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    assert follows(model)
    monkeypatch.setattr(
        "holdfast.crafting.folding.input_gradient", lambda *_: pytest.fail("it was found faithful before")
    )
    assert follows(model)


class Switched(nn.Module):
    """Does one thing or another by a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.on, self.factors, self.shift = False, {"off": [1.0], "on": [2.0]}, torch.zeros(())
        self.act: Callable[[Tensor], Tensor] = torch.relu
        self.weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.factors["on" if self.on else "off"][0] * self.act(x) + self.shift + 0.01 * self.weight


def patch(model: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Switched, "forward", lambda self, x: x.tanh())


CHANGES: dict[str, Callable[[Net, pytest.MonkeyPatch], object]] = {
    "flag": lambda model, _: setattr(model.more[0], "on", True),
    "content": lambda model, _: model.more[0].factors["off"].__setitem__(0, 3.0),
    "tensor": lambda model, _: setattr(model.more[0], "shift", torch.ones(())),
    "function": lambda model, _: setattr(model.more[0], "act", torch.tanh),
    "parameter": lambda model, _: setattr(model.more[0], "weight", nn.Parameter(torch.ones(4, 4))),
    "assigned": lambda model, _: model.load_state_dict(
        {name: 1.0005 * value.flip(-1) if value.ndim else value for name, value in model.state_dict().items()},
        assign=True,
    ),
    "class": patch,
    "eps": lambda model, _: setattr(model.norm, "eps", 0.3),
    "slope": lambda model, _: setattr(model.more[1], "negative_slope", 0.7),
    "swapped": lambda model, _: model.more.__setitem__(1, nn.LeakyReLU(0.5)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("numbers", ["float32", "bfloat16"])
def test_attributes_set_between_attacks_are_followed(
    change: str, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 2.0)
    model, x = Net(torch.relu, Switched(), nn.LeakyReLU(0.1)), images()
    attack = PGD(threat=Threat(LInf(), 0.1), steps=3, keep="last")
    with arithmetic(numbers):
        for _ in range(3):
            attack(model, x, torch.arange(6) % 5, rng=Rng(1))
        CHANGES[change](model, monkeypatch)
        fresh = copy.deepcopy(model)
        both = [attack(one, x, torch.arange(6) % 5, rng=Rng(1)) for one in (model, fresh)]
        assert described(model)["folded"]
    assert torch.equal(*both)
    follows(model)


class Drawing(nn.Module):
    """Rolls images by a whole number that it draws."""

    def __init__(self, draw: Callable[[], int]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(self.draw(), -1)


SOURCES = {
    "torch": lambda: int(torch.randint(0, 4, ())),
    "python": lambda: random.randint(0, 3),
    "numpy": lambda: int(np.random.randint(0, 4)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_integers_drawn_in_every_pass(source: str) -> None:
    model = Net(torch.relu, Drawing(SOURCES[source]))
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    assert trace(model) == "its forward pass draws random numbers that a trace would freeze"
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(np.random.get_state())) == states[1:]


class Remembering(nn.Module):
    """Counts its calls where it was told to."""

    def __init__(self, remember: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.remember, self.state, self.seen = remember, {"calls": 0}, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.remember(self, x)
        return x


MEMORIES: dict[str, Callable[[Any, Tensor], object]] = {
    "dict": lambda self, _: self.state.update(calls=self.state["calls"] + 1),
    "list": lambda self, _: self.seen.__setitem__(0, 1),
    "new attribute": lambda self, x: setattr(self, "last", x),
    "tensor": lambda self, x: setattr(self, "seen", x),
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_forward_passes_with_state(memory: str) -> None:
    assert trace(Net(torch.relu, Remembering(MEMORIES[memory]))) == "its forward pass changes its own state"


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(
    "between", [nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8), nn.functional.instance_norm]
)
def test_instance_norm(between: Any, n: int) -> None:
    """With channels last torch's gradient of one sample is wrong."""
    assert not follows(Net(between), images(n))


class Named(Net):
    """Calls its layers by keyword."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(input=self.norm(input=self.conv(input=x)).relu().flatten(1))


@pytest.mark.parametrize("numbers", ["float32", "bfloat16"])
def test_layers_called_by_keyword(numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 2.0)
    model = Named()
    assert not follows(model)  # nothing that could be folded is found
    assert adapt(model).outputs(images()).features.shape == (6, 128)
    with arithmetic(numbers), crafting(model, Rng(0)) as view:
        assert view.outputs(images()).features.shape == (6, 128)


@pytest.mark.parametrize("missing", [("bias",), ("weight",), ("running_mean", "running_var")])
def test_batch_norm_that_lacks_something(missing: tuple[str, ...]) -> None:
    model = Net().eval()
    for name in missing:
        setattr(model.norm, name, None)
    assert not follows(model)


class Viewing(Net):
    """Flattens as people do."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().view(x.size(0), -1))


def test_views_of_images_fold_too() -> None:
    assert follows(Viewing())


class Scaled(Classifier):
    """A classifier with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Opened(Classifier):
    """A classifier with outputs of its own."""

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        out = super().outputs(x, layer)
        return out._replace(logits=-out.logits)

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize("kind", [Scaled, Opened])
def test_passes_of_a_class_made_of_classifier(kind: type[Classifier]) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    model = kind(encoder, nn.Linear(288, 5)).eval()
    assert torch.equal(adapt(model).outputs(images()).logits, model(images()))
    assert adapt(model).outputs(images()).features.shape == (6, 288)
    follows(model)


def test_averaged_models_are_looked_into() -> None:
    model = Net()
    assert unwrapped(AveragedModel(AveragedModel(model))) is not None
    averaged = AveragedModel(model)
    assert unwrapped(averaged) is averaged.module
    assert follows(averaged)


def test_a_class_from_a_file_with_the_name_of_an_engine() -> None:
    kind = type("Own", (Net,), {"__module__": "lightning_net"})
    model = kind()
    assert unwrapped(model) is model
    within = type("Own", (Net,), {"__module__": "lightning.own"})()
    assert unwrapped(within) is within
