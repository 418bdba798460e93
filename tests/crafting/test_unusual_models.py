"""Unusual models are attacked as strongly as by a plain loop: what a fast form would miss is called as it is."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from holdfast import PGD, LInf, Rng, Threat, arithmetic
from holdfast.crafting import using
from holdfast.crafting.view import _EVERY, _LARGE, _SELDOM, Mode, crafting, described, unwrapped
from holdfast.models.mixed import Mixed

SHAPE = (1, 4, 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    return nn.Sequential(*layers).eval()


def images(n: int = 8) -> tuple[Tensor, Tensor]:
    return Rng(5).uniform(torch.empty(n, *SHAPE)), torch.arange(n) % 5


class Negated(AveragedModel):
    """A subclass of a wrapper with a forward pass of its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return -super().forward(*args, **kwargs)


class NegatedMixed(Mixed):
    """The same for training in lower precision."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


def hooked(wrapper: nn.Module) -> nn.Module:
    wrapper.register_forward_hook(lambda _module, _args, out: -out)
    return wrapper


def patched(wrapper: nn.Module) -> nn.Module:
    wrapper.forward = lambda x: -wrapper.module(x)  # type: ignore[method-assign, operator, union-attr]
    return wrapper


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "subclass of AveragedModel": Negated,
    "subclass of Mixed": lambda model: NegatedMixed(model, torch.device("cpu")),
    "hook on AveragedModel": lambda model: hooked(AveragedModel(model)),
    "hook on Mixed": lambda model: hooked(Mixed(model, torch.device("cpu"))),
    "forward of one AveragedModel": lambda model: patched(AveragedModel(model)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_that_do_more_than_wrap_are_called(name: str) -> None:
    model = WRAPPERS[name](net()).eval()
    assert unwrapped(model) is model
    x, _ = images()
    with crafting(model, Rng(0)) as view:
        assert torch.allclose(view(x), -net()(x), atol=1e-5)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this build of torch has no torch.distributed with gloo")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("hook", [False, True])
def test_distributed_data_parallel_is_unwrapped_unless_it_has_hooks(hook: bool) -> None:
    model, (x, y) = net(), images()
    wrapper = DistributedDataParallel(model)
    if hook:
        hooked(wrapper)
    assert unwrapped(wrapper) is (wrapper if hook else model)
    with crafting(wrapper, Rng(0)) as view:
        assert torch.allclose(view(x), -net()(x) if hook else net()(x), atol=1e-5)
    attack = PGD(threat=Threat(LInf(), 0.1), steps=3, keep="last")
    with using("module"):
        expected = attack(wrapper, x, y, rng=Rng(0))
    assert torch.allclose(attack(wrapper, x, y, rng=Rng(0)), expected, atol=1e-6)


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda m: m.register_forward_hook(lambda _module, _args, out: -out),
    "forward_pre": lambda m: m.register_forward_pre_hook(lambda _module, args: (1 - args[0],)),
    "full_backward": lambda m: m.register_full_backward_hook(lambda _module, grads, _out: (-grads[0],)),
    "full_backward_pre": lambda m: m.register_full_backward_pre_hook(lambda _module, grads: (-grads[0],)),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_every_kind_on_an_averaged_model_take_effect(kind: str) -> None:
    model, (x, y) = AveragedModel(net()).eval(), images()
    attack = PGD(threat=Threat(LInf(), 0.1), steps=3, start="clean", keep="last")
    without = attack(model, x, y, rng=Rng(0))
    HOOKS[kind](model)
    assert unwrapped(model) is model
    with using("module"):
        expected = attack(model, x, y, rng=Rng(0))
    assert not torch.allclose(expected, without, atol=1e-3)
    assert torch.allclose(attack(model, x, y, rng=Rng(0)), expected, atol=1e-6)


def test_plain_wrappers_are_looked_into() -> None:
    model = net()
    assert unwrapped(Mixed(AveragedModel(model), torch.device("cpu"))) is not model  # AveragedModel copies
    wrapped = Mixed(model, torch.device("cpu"))
    assert unwrapped(wrapped) is model


@pytest.mark.parametrize("compile_", [lambda m: torch.jit.trace(m, images()[0]), torch.jit.script])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_models_that_torch_jit_compiled_are_called_as_they_are(compile_: Any, inside: bool) -> None:
    compiled = compile_(net())
    model = nn.Sequential(compiled, nn.Identity()) if inside else compiled
    x, y = images()
    attack = PGD(threat=Threat(LInf(), 0.1), steps=3, keep="last")
    with using("module"):
        expected = attack(net(), x, y, rng=Rng(0))
    assert torch.allclose(attack(model, x, y, rng=Rng(0)), expected, atol=1e-6)
    assert described(model)["reason"] == "torch.jit has compiled it"


class Steep(nn.Module):
    """A sigmoid on the input whose gradients bfloat16 rounds to zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(50 * (x - 0.5))


def test_gradients_that_bfloat16_rounds_away_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 2.0)
    torch.manual_seed(0)
    body = nn.Flatten(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5)
    model, (x, _) = nn.Sequential(Steep(), *body).eval(), images(256)
    y, left = model(x).argmax(1), {}
    for name in ("float32", "bfloat16"):
        with arithmetic(name):  # type: ignore[arg-type]
            x_adv = PGD(threat=Threat(LInf(), 0.1), steps=10)(model, x, y, rng=Rng(0))
            left[name] = int((model(x_adv).argmax(1) == y).sum())
            told = described(model)
    assert told["reason"] == "in lower precision, its gradients point elsewhere"
    assert left["bfloat16"] == left["float32"]
    with arithmetic("bfloat16"):  # without the steep part bfloat16 is used
        ordinary = nn.Sequential(*body).eval()
        PGD(threat=Threat(LInf(), 0.1), steps=3)(ordinary, x, y, rng=Rng(0))
        assert described(ordinary) == {"folded": True, "arithmetic": "bfloat16"}


class Turning(nn.Module):
    """Gives other logits, or lets no gradient through, from some pass on; it counts where no trace looks."""

    def __init__(self, count: list[int], after: int) -> None:
        super().__init__()
        self.net, self.count, self.after = net(), lambda: count.__setitem__(0, count[0] + 1) or count[0], after

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (1 if self.count() < self.after else -1)


def test_a_long_call_compares_again() -> None:
    """The model turns after the first comparison; the second one notices."""
    count = [0]
    model, (x, _) = Turning(count, 8), images()
    with crafting(model, Rng(0)) as view:
        first = view(x)
        count[0] = 100
        for _ in range(_EVERY - 1):
            assert torch.equal(view(x), first)
        assert torch.allclose(view(x), -first, atol=1e-4)
    assert described(model)["reason"] == "folded, it gives other outputs"


@pytest.mark.parametrize(
    ("numbers", "train", "large"),
    [
        *(("float32", train, True) for train in (False, True)),
        *(("bfloat16", train, large) for train in (False, True) for large in (False, True)),
    ],
)
def test_which_calls_compare_gradients(numbers: Any, train: bool, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on the call, so that a resumed run compares where the uninterrupted one did, and on new weights."""
    monkeypatch.setattr("holdfast.crafting.arithmetic.trial", lambda: 2.0)
    seen: list[int] = []
    monkeypatch.setattr("holdfast.crafting.view.folding.same_direction", lambda a, b: seen.append(len(a)) or True)
    model, (x, _) = net().train(train), images()
    chosen = [Rng(seed).fork("comparison").seed % _SELDOM == 0 for seed in range(64)]
    assert 0 < sum(chosen) < 20
    assert not any(chosen[:2])
    passes = (_LARGE - 1) // len(x) + large

    def compared() -> int:
        seen.clear()
        for seed in range(64):
            with crafting(model, Rng(seed), passes) as view:
                view(x)
        assert set(seen) == {4}
        return len(seen)

    lowered = numbers == "bfloat16"
    every, weights = lowered and not train and large, lowered and not train and not large
    with arithmetic(numbers):
        for new in (1 + weights if weights or not lowered else 0, 0, 2 * weights):  # changes are seen in two calls
            assert compared() == (64 if every else sum(chosen) + new)
            if not new:
                model.load_state_dict(model.state_dict())


def test_a_form_that_disagreed_is_compared_in_every_call_until_it_agrees() -> None:
    count = [0]
    model, (x, _) = Turning(count, 8), images()
    assert described(model.train())["folded"]
    count[0] = 100
    for seed in (1, 2, 3):  # none of which asks for a thorough comparison
        with crafting(model, Rng(seed)) as view:
            assert torch.allclose(view(x), -model.net.eval()(x), atol=1e-4)
    assert described(model)["reason"] == "traced, it has other gradients"


@pytest.mark.parametrize("mode", ["auto", "module"])
def test_the_module_itself_can_be_asked_for(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, _) = net(), images()
    if mode == "module":
        monkeypatch.setattr("holdfast.crafting.folding.folded", lambda *_: pytest.fail("it was folded"))
    with using(mode):
        with crafting(model, Rng(0)) as view:
            assert torch.equal(view(x), copy.deepcopy(model)(x)) or mode == "auto"
        told = described(model)
    reason = {} if mode == "auto" else {"reason": "the module itself was asked for"}
    assert told == {"folded": mode == "auto", "arithmetic": "float32", **reason}


def test_the_mode_ends_with_its_context_and_others_are_refused() -> None:
    with pytest.raises(KeyError), using("module"):
        raise KeyError
    assert described(net())["folded"]
    with pytest.raises(ValueError, match="one of auto, module"), using("fast"):  # type: ignore[arg-type]
        pass
