"""The frozen view leaves a model exactly as it was found, whatever happens inside."""

import random
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.contracts import Model
from holdfast.crafting import folding
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import crafting, frozen
from holdfast.models.classifier import Classifier
from holdfast.rng import Rng


class Noisy(nn.Module):
    """A randomized model: it draws from torch's global generator in every mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) + torch.randn(len(x), x[:1].numel())


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)  # weights are drawn from torch's global generator


@pytest.fixture
def model() -> Classifier:
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 4))
    net = Classifier(body, nn.Linear(4, 3)).train()
    body[1].eval()  # modes may be mixed, as in fine-tuning
    body[0].weight.requires_grad_(False)
    net.head.weight.grad = torch.ones(3, 4)
    net.head.register_forward_hook(lambda *_: None)
    return net


def state(model: nn.Module) -> list[object]:
    """Everything an attack could leave changed."""
    return [
        [module.training for module in model.modules()],
        [(p.requires_grad, p.is_leaf, None if p.grad is None else p.grad.tolist()) for p in model.parameters()],
        [value.tolist() for value in model.state_dict().values()],
        [(list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks)) for m in model.modules()],
        [id(module) for module in model.modules()],
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.is_grad_enabled(),
    ]


def leave(view: Model) -> None:
    """Nothing happens."""


def attack(view: Model) -> None:
    x = torch.rand(5, 1, 4, 4, requires_grad=True)
    view.outputs(x).logits.sum().backward()
    torch.rand(7)
    assert x.grad is not None


def fail(view: Model) -> None:
    attack(view)
    raise RuntimeError("the model broke")


def interrupt(view: Model) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("act", [leave, attack, fail, interrupt])
def test_everything_is_as_before(act: Callable[[Model], None], model: Classifier, rng: Rng) -> None:
    before = state(model)
    with suppress(RuntimeError, KeyboardInterrupt), frozen(model, rng) as view:
        act(view)
    assert state(model) == before


def test_inside_everything_is_in_eval_mode_without_parameter_gradients(model: Classifier, rng: Rng) -> None:
    with frozen(model, rng) as view:
        assert view is model
        assert not any(module.training for module in model.modules())
        assert not any(p.requires_grad for p in model.parameters())
        x = torch.rand(3, 1, 4, 4)
        assert torch.equal(view.outputs(x).logits, view.outputs(x).logits)  # no dropout
    with pytest.raises(RuntimeError, match="broke"), frozen(model, rng):
        raise RuntimeError("broke")  # an exception is passed on, not swallowed


def test_views_can_be_nested(model: Classifier, rng: Rng) -> None:
    before = state(model)
    with frozen(model, rng), frozen(model, rng.fork("inner")):
        assert not any(module.training for module in model.modules())
    assert state(model) == before


def test_any_module_is_opened(rng: Rng) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with frozen(net, rng) as view:
        x = torch.rand(2, 1, 2, 2)
        assert torch.equal(view.outputs(x).features, x.flatten(1))


def test_a_randomized_model_draws_from_the_rng(rng: Rng) -> None:
    def draw(rng: Rng) -> Tensor:
        with frozen(Noisy(), rng) as view:
            return torch.cat([view(torch.zeros(2, 3)), view(torch.zeros(2, 3))])

    torch.manual_seed(1)
    first = draw(rng)
    torch.manual_seed(2)
    assert torch.equal(draw(rng), first)
    assert not torch.equal(draw(rng.fork("other")), first)
    assert not torch.equal(first[:2], first[2:])


@pytest.mark.parametrize(("convolution", "lowered"), [(True, False), (False, False), (False, True)])
def test_few_passes_fold_only_where_it_pays(convolution: bool, lowered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nn.Conv2d(2, 6, 4), nn.BatchNorm2d(6), nn.Flatten()
    second = nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6)
    model, x = nn.Sequential(*(first if convolution else second), nn.Linear(6, 3)).eval(), torch.rand(2, 2, 4, 4)
    asked: list[int] = []
    prepare = folding.Folded.prepare
    monkeypatch.setattr(folding.Folded, "prepare", lambda self, n: (asked.append(n), prepare(self, n))[1])
    for passes in (1, 3, 4):
        with arithmetic("bfloat16" if lowered else "float32"), crafting(model, Rng(0), passes) as view:
            assert torch.allclose(view.outputs(x).logits, model(x), atol=0.05 if lowered else 1e-5)
    assert asked == ([1, 3, 4] if convolution or lowered else [4])
