"""The conformance test of attacks: what every file of the folder must fulfil, found by file name.

Nothing here lists the attacks: what differs between them is read from the contract or measured.
"""

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import get_args

import pytest
import torch
from subjects import EPS, MEMBERS, NORMS_OF, Counted, Net, build, member, samples
from torch import Tensor, nn

from holdfast.contracts import Attack, Cascade, Cost, Keep, Outputs, Rows
from holdfast.crafting import microbatch
from holdfast.geometry import NORMS, Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng

each = pytest.mark.parametrize("name", MEMBERS)
in_every_norm = pytest.mark.parametrize(("name", "norm"), [(name, norm) for name in MEMBERS for norm in NORMS_OF[name]])


def having(field: str) -> list[str]:
    return [name for name in MEMBERS if field in {f.name for f in dataclasses.fields(member(name))}]


@pytest.fixture
def net() -> Net:
    model = Net().double().train()
    model.body[1].eval()  # a mixture of modes
    model.body[0].bias.requires_grad_(False)
    model.body[5].weight.grad = torch.ones_like(model.body[5].weight)
    return model


def made(name: str, norm: str | None = None, source: nn.Module | None = None) -> Attack:
    """The attack in a norm, by default the first in which it works."""
    norm = norm or NORMS_OF[name][0]
    return build(name, Threat(NORMS[norm], EPS[norm]), source=source or Net(seed=1).double())


def state(*models: nn.Module) -> list[object]:
    """Everything an attack could leave changed."""
    found: list[object] = [torch.get_rng_state().tolist(), torch.is_grad_enabled()]
    for model in models:
        found.append([module.training for module in model.modules()])
        found.append([(p.requires_grad, None if p.grad is None else p.grad.tolist()) for p in model.parameters()])
        found.append([value.tolist() for value in model.state_dict().values()])
        found.append([(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()])
    return found


def forward_passes(name: str, eps: float, rng: Rng) -> int:
    """How often the attack evaluates a model, be it the target or a source."""
    net, source = Counted(Net().double()), Counted(Net(seed=1).double())
    x, rows = samples(9, rng, net.module)
    made(name, source=source).at(eps)(net, x, rows, rng=rng)
    return len(net.sizes) + len(source.sizes)


def test_the_folder_has_the_attacks_of_the_recipes() -> None:
    assert {"fgsm", "bim", "pgd", "mim", "cw_linf", "noise", "transfer", "feature_norm", "linearity"} <= set(MEMBERS)


@each
def test_a_file_holds_one_frozen_dataclass_named_like_the_file(name: str) -> None:
    cls = member(name)
    assert cls.__name__.lower() == name.replace("_", "")
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # the docstring that dataclass generates
    parameters = inspect.signature(cls.__call__).parameters
    assert list(parameters) == ["self", "model", "x", "y", "rng", "watch"]
    assert all(parameters[key].kind is inspect.Parameter.KEYWORD_ONLY for key in ("rng", "watch"))
    assert parameters["watch"].default is None


@each
def test_settings_have_defaults_except_the_threat_and_what_is_wrapped(name: str) -> None:
    required = {f.name for f in dataclasses.fields(member(name)) if f.default is f.default_factory}
    assert required <= {"threat", "attack", "source"}
    assert NORMS_OF[name], "the attack must work in at least one norm"


@each
def test_fulfils_the_contract(name: str) -> None:
    attack = made(name)
    assert isinstance(attack, Attack)
    assert attack.keep in get_args(Keep)
    assert attack.minimal == (attack.keep == "closest")


@each
def test_another_loss_is_maximized_or_refused(name: str, net: Net, rng: Rng) -> None:
    """Training methods with an inner problem of their own ask for it."""
    seen: list[int] = []

    def loss(out: Outputs, rows: Rows) -> Tensor:
        seen.extend(rows.index.tolist())
        return cross_entropy(out, rows)

    attack = made(name)
    x, rows = samples(5, rng, net)
    if not {"loss", "start"} <= {field.name for field in dataclasses.fields(attack)}:
        with pytest.raises(ValueError, match=f"{type(attack).__name__} has no choice of loss and start"):
            attack.with_loss(loss, "random")
        return
    changed = attack.with_loss(loss, "random")
    assert type(changed) is type(attack)
    assert (changed.threat, changed.keep) == (attack.threat, attack.keep)
    first, second = (changed(net, x, rows, rng=Rng(seed)) for seed in (0, 1))
    assert set(seen) == set(rows.index.tolist())
    assert not torch.equal(first, second)  # the start is random


@in_every_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_are_inside_ball_and_box(name: str, norm: str, dtype: torch.dtype, net: Net, rng: Rng) -> None:
    x, rows = samples(9, rng, net)
    x, net, kept = x.to(dtype), net.to(dtype), x.to(dtype, copy=True)
    attack = made(name, norm, source=Net(seed=1).to(dtype))
    x_adv = attack(net, x.requires_grad_(), rows, rng=rng)
    assert attack.threat.contains(x_adv, kept).all()
    assert (x_adv.shape, x_adv.dtype, x_adv.requires_grad) == (x.shape, dtype, False)
    assert attack.minimal or not torch.equal(x_adv, kept)  # the boundary may be further away than eps
    assert torch.equal(x, kept)
    x_adv.zero_()
    assert torch.equal(x, kept)  # the result shares no memory with the input


@in_every_norm
def test_tabular_data_without_a_box(name: str, norm: str, rng: Rng) -> None:
    x = 50 * rng.normal(torch.empty(5, 6, dtype=torch.float64))
    net = nn.Linear(6, 3).double()
    net.weight.data = rng.fork("weight").normal(x[:3])
    attack = build(name, Threat(NORMS[norm], EPS[norm], -inf, inf), source=net)
    x_adv = attack(net, x, net(x).argmax(1), rng=rng)
    assert attack.threat.contains(x_adv, x).all()
    assert attack.minimal or not torch.equal(x_adv, x)  # the boundary may be further away than eps


@each
def test_leaves_model_and_generators_unchanged(name: str, net: Net, rng: Rng) -> None:
    attack = made(name)
    x, rows = samples(9, rng, net)
    before = state(net)
    attack(net, x, rows, rng=rng)
    assert state(net) == before


@each
@pytest.mark.parametrize("calls", [0, 1])
def test_leaves_model_and_generators_unchanged_when_the_model_fails(name: str, calls: int, net: Net, rng: Rng) -> None:
    x, rows = samples(9, rng, net)
    source = Net(seed=1).double()
    attack = made(name, source=source)
    attack = attack.at(attack.threat.eps / 10)
    before = state(net, source)
    net.calls_left = source.calls_left = calls
    if forward_passes(name, attack.threat.eps, rng) > calls:
        with pytest.raises(RuntimeError, match="the model broke"):
            attack(net, x, rows, rng=rng)
    else:
        attack(net, x, rows, rng=rng)
    assert state(net, source) == before


@each
def test_randomness_comes_from_the_rng_alone(name: str, net: Net, rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without draws the result is the same for every rng, with draws another."""
    attack, draws = made(name), list[int]()
    x, rows = samples(9, rng, net)
    for source in ("uniform", "generator"):
        original = getattr(Rng, source)
        monkeypatch.setattr(Rng, source, lambda *args, f=original: draws.append(1) or f(*args))
    first = attack(net, x, rows, rng=rng)
    torch.manual_seed(1)
    assert torch.equal(attack(net, x, rows, rng=Rng(0)), first)
    if not isinstance(attack, Cascade):  # its first stage may find the same points without random numbers
        assert torch.equal(attack(net, x, rows, rng=Rng(1)), first) == (not draws)


@in_every_norm
def test_a_result_does_not_depend_on_the_other_samples(
    name: str, norm: str, net: Net, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = made(name, norm)
    x, rows = samples(7, rng, net)
    together = attack(net, x, rows, rng=rng)
    alone = [attack(net, x[i : i + 1], rows.take(torch.tensor([i])), rng=rng) for i in range(7)]
    order = torch.tensor([3, 6, 0, 5])
    monkeypatch.setattr(microbatch, "size", lambda: 3)
    for other, which in (
        (torch.cat(alone), torch.arange(7)),
        (attack(net, x, rows, rng=rng), torch.arange(7)),
        (attack(net, x[order], rows.take(order), rng=rng), order),
    ):
        torch.testing.assert_close(other, together[which], atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", [name for name in MEMBERS if made(name).black_box])
def test_a_black_box_attack_gives_the_same_result_on_any_callable(name: str, net: Net, rng: Rng) -> None:
    x, rows = samples(5, rng, net)
    expected = made(name)(net, x, rows, rng=rng)

    def ask(x: Tensor) -> Tensor:
        assert not x.requires_grad
        assert not torch.is_grad_enabled()
        return net(x)

    net.eval()
    assert torch.equal(made(name)(ask, x, rows, rng=rng), expected)


@each
def test_labels_without_an_index_are_keyed_by_position(name: str, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    alone = made(name)(net, x, rows.y, rng=rng)
    assert torch.equal(alone, made(name)(net, x, Rows(rows.y, torch.arange(4)), rng=rng))


@in_every_norm
@pytest.mark.parametrize("b", [0, 1])
def test_empty_and_single_batches(name: str, norm: str, b: int, net: Net, rng: Rng) -> None:
    x, rows = samples(b, rng, net)
    x_adv = made(name, norm)(net, x, rows, rng=rng)
    assert x_adv.shape == (b, 2, 4, 4)
    assert made(name, norm).threat.contains(x_adv, x).all()


@in_every_norm
def test_an_eps_of_zero_returns_the_input(name: str, norm: str, net: Net, rng: Rng) -> None:
    x, rows = samples(3, rng, net)
    assert torch.equal(made(name, norm).at(0.0)(net, x, rows, rng=rng), x)


@each
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
def test_works_inside_no_grad_and_inference_mode(
    name: str, mode: Callable[[], AbstractContextManager[None]], net: Net, rng: Rng
) -> None:
    x, rows = samples(3, rng, net)
    attack = made(name)
    expected = attack(net, x, rows, rng=rng)
    with mode():
        found = attack(net, x.clone(), rows, rng=rng)
    assert torch.equal(found, expected)


BAD: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor | Rows]]] = {
    "torch.float64 but class indices": lambda x, y: (x, y.double()),
    r"has shape \(4, 1\)": lambda x, y: (x, y[:, None]),
    "torch.int32 but class indices": lambda x, y: (x, y.int()),
    "NaN or infinite": lambda x, y: (x.index_fill(1, torch.tensor([0]), float("nan")), y),
    r"spans \[1, 2\] but the threat allows \[0, 1\]": lambda x, y: (x + 1, y),
    r"spans \[-0\.5, 0\.5\] but the threat allows \[0, 1\]": lambda x, y: (x - 0.5, y),
    "divide images by 255": lambda x, y: ((255 * x).to(torch.uint8), y),
    "x has 4 samples and y 3": lambda x, y: (x, y[:3]),
    "y has 4 samples and the rows' index 3": lambda x, y: (x, Rows(y, torch.arange(3))),
    "y has 4 samples and the rows' tag 5": lambda x, y: (x, Rows(y, torch.arange(4), {"tag": torch.arange(5)})),
}


@each
@pytest.mark.parametrize("words", BAD)
def test_bad_inputs_are_refused_in_one_sentence(name: str, words: str, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    with pytest.raises(ValueError, match=words) as caught:
        made(name)(net, *BAD[words](x, rows.y), rng=rng)
    assert "\n" not in str(caught.value)


@each
@pytest.mark.parametrize("label", [-1, 3])
def test_labels_without_a_logit_are_refused(name: str, label: int, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    attack, y = made(name), rows.y.index_fill(0, torch.tensor([2]), label)
    if not forward_passes(name, attack.threat.eps, rng):  # it cannot know the number of classes
        attack(net, x, y, rng=rng)
        return
    with pytest.raises(ValueError, match=r"labels span .* but the model has classes 0\.\.2"):
        attack(net, x, y, rng=rng)


@each
def test_negative_eps_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"eps is -0\.1 but a radius must be zero or more"):
        made(name).at(-0.1)


@pytest.mark.parametrize("name", having("loss"))
def test_the_rows_of_a_loss_stay_with_their_samples(
    name: str, net: Net, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def loss(out: Outputs, rows: Rows) -> Tensor:
        assert torch.equal(rows["tag"], 3 * rows.index + 1)
        assert torch.equal(rows["clean"].flatten(1)[:, 0], rows.index.double())
        seen.extend(rows.index.tolist())
        return cross_entropy(out, rows)

    monkeypatch.setattr(microbatch, "size", lambda: 4)
    x, rows = samples(11, rng, net)
    given = {"tag": 3 * rows.index + 1, "clean": rows.index.double()[:, None, None].expand(-1, 2, 2)}
    attack = dataclasses.replace(made(name), loss=loss)
    attack(net, x, Rows(rows.y, rows.index, given), rng=rng)
    assert set(seen) == set(rows.index.tolist())


@in_every_norm
def test_at_is_the_same_attack_at_another_eps(name: str, norm: str, net: Net, rng: Rng) -> None:
    attack = made(name, norm)
    half = attack.at(EPS[norm] / 2)
    assert type(half) is type(attack)
    assert half.threat == dataclasses.replace(attack.threat, eps=EPS[norm] / 2)
    assert attack.threat.eps == EPS[norm]
    x, rows = samples(5, rng, net)
    assert torch.equal(attack.at(EPS[norm])(net, x, rows, rng=rng), attack(net, x, rows, rng=rng))
    assert half.threat.contains(half(net, x, rows, rng=rng), x).all()


@pytest.mark.parametrize("name", having("step"))
def test_at_scales_a_given_step(name: str) -> None:
    attack = dataclasses.replace(made(name).at(0.2), step=0.05)
    assert attack.at(0.1).step == pytest.approx(0.025)
    assert attack.at(0.0).step == 0
    assert attack.at(inf).step == 0.05
    assert attack.at(inf).at(0.1).step == 0.05
    assert made(name).at(0.1).step is None


@pytest.mark.parametrize("name", having("step"))
@pytest.mark.parametrize("step", [-0.1, inf, float("nan")])
def test_negative_and_infinite_steps_are_refused(name: str, step: float) -> None:
    with pytest.raises(ValueError, match="a step must be finite and not negative"):
        dataclasses.replace(made(name), step=step)


@each
def test_only_minimal_attacks_accept_an_infinite_eps_without_a_step(name: str, net: Net, rng: Rng) -> None:
    """The steps and starts of the others would be infinite, and so would the inputs."""
    x, rows = samples(3, rng, net)
    if made(name).minimal:
        attack = made(name).at(inf)
        x_adv = attack(net, x, rows, rng=rng)
        assert attack.threat.contains(x_adv, x).all()
        assert not torch.equal(x_adv, x)
        return
    with pytest.raises(ValueError, match="eps is infinite"):
        made(name).at(inf)(net, x, rows, rng=rng)


@pytest.mark.parametrize("name", having("steps"))
@pytest.mark.parametrize("steps", [0, -1])
def test_fewer_than_one_step_is_refused(name: str, steps: int) -> None:
    with pytest.raises(ValueError, match=f"steps is {steps} .*at least one"):
        dataclasses.replace(made(name), steps=steps)


@pytest.mark.parametrize("name", having("keep"))
def test_an_unknown_keep_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="keep is 'best' but it must be one of fooled, last, worst, closest"):
        dataclasses.replace(made(name), keep="best")


@each
@pytest.mark.parametrize("micro", [3, 256])
def test_watch_receives_the_true_cost(
    name: str, micro: int, net: Net, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microbatch, "size", lambda: micro)
    x, rows = samples(8, rng, net)
    target, source = Counted(net), Counted(Net(seed=1).double())
    attack = made(name, source=source)
    attack = attack.at(attack.threat.eps / 2)
    costs: list[Cost] = []

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        assert len(rows) == len(x_adv) == len(loss) == cost.forwards
        assert not x_adv.requires_grad
        assert not loss.requires_grad
        clean = x[(rows.index[:, None] == all_rows.index[None]).long().argmax(1)]
        # without gradients, the way to the closest point begins far away
        assert (attack.minimal and attack.black_box) or attack.threat.contains(x_adv, clean).all()
        costs.append(cost)

    all_rows = rows
    watched = attack(target, x, rows, rng=rng, watch=watch)
    assert sum(costs, Cost()) == target.cost + source.cost
    assert torch.equal(watched, attack(net, x, rows, rng=rng))
    assert all(size <= micro for size in target.sizes + source.sizes)
