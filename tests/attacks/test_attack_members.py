"""What every attack owes its callers, checked for each file of the folder."""

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf

import pytest
import torch
from subjects import EPS, MEMBERS, RANDOM, Counted, Net, build, member, samples
from torch import Tensor, nn

from holdfast.contracts import Attack, Cost, Outputs, Rows
from holdfast.crafting import microbatch
from holdfast.geometry import NORMS, LInf, Threat
from holdfast.losses.classification import cross_entropy
from holdfast.rng import Rng

each = pytest.mark.parametrize("name", MEMBERS)
in_every_norm = pytest.mark.parametrize("norm", NORMS)


def having(field: str) -> list[str]:
    return [name for name in MEMBERS if field in {f.name for f in dataclasses.fields(member(name))}]


@pytest.fixture
def net() -> Net:
    model = Net().double().train()
    model.body[1].eval()  # modes may be mixed
    model.body[0].bias.requires_grad_(False)
    model.body[5].weight.grad = torch.ones_like(model.body[5].weight)
    return model


def made(name: str, norm: str = "linf", **box: float) -> Attack:
    return build(name, Threat(NORMS[norm], EPS[norm], **box), source=Net(seed=1).double())


def state(*models: nn.Module) -> list[object]:
    """Everything an attack could leave changed."""
    found: list[object] = [torch.get_rng_state().tolist(), torch.is_grad_enabled()]
    for model in models:
        found.append([module.training for module in model.modules()])
        found.append([(p.requires_grad, None if p.grad is None else p.grad.tolist()) for p in model.parameters()])
        found.append([value.tolist() for value in model.state_dict().values()])
        found.append([(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()])
    return found


def asks_the_model(name: str, net: Net, rng: Rng) -> bool:
    counted = Counted(net)
    x, rows = samples(2, rng, net)
    made(name)(counted, x, rows, rng=rng)
    return bool(counted.sizes)


def test_the_folder_has_what_the_recipes_name() -> None:
    assert {"fgsm", "bim", "pgd", "mim", "cw_linf", "noise", "transfer", "feature_norm", "linearity"} <= set(MEMBERS)
    assert set(MEMBERS) >= RANDOM


@each
def test_shape_of_a_member(name: str) -> None:
    made = member(name)
    assert made.__name__.lower() == name.replace("_", "")
    assert dataclasses.is_dataclass(made)
    assert made.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(made))
    assert made.__doc__
    assert not made.__doc__.startswith(f"{made.__name__}(")  # what dataclass writes if nobody did
    parameters = inspect.signature(made.__call__).parameters
    assert list(parameters) == ["self", "model", "x", "y", "rng", "watch"]
    assert all(parameters[key].kind is inspect.Parameter.KEYWORD_ONLY for key in ("rng", "watch"))
    assert parameters["watch"].default is None


@each
@in_every_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stays_in_threat_and_box(name: str, norm: str, dtype: torch.dtype, net: Net, rng: Rng) -> None:
    x, rows = samples(9, rng, net)
    x, net, kept = x.to(dtype), net.to(dtype), x.to(dtype, copy=True)
    attack = build(name, Threat(NORMS[norm], EPS[norm]), source=Net(seed=1).to(dtype))
    x_adv = attack(net, x.requires_grad_(), rows, rng=rng)
    assert attack.threat.contains(x_adv, kept).all()
    assert (x_adv.shape, x_adv.dtype, x_adv.requires_grad) == (x.shape, dtype, False)
    assert not torch.equal(x_adv, kept)
    assert torch.equal(x, kept)
    x_adv.zero_()
    assert torch.equal(x, kept)  # the answer shares no memory with the question


@each
@in_every_norm
def test_tables_without_a_box(name: str, norm: str, rng: Rng) -> None:
    x = 50 * rng.normal(torch.empty(5, 6, dtype=torch.float64))
    net = nn.Linear(6, 3).double()
    net.weight.data = rng.fork("weight").normal(x[:3])
    attack = build(name, Threat(NORMS[norm], EPS[norm], -inf, inf), source=net)
    x_adv = attack(net, x, net(x).argmax(1), rng=rng)
    assert attack.threat.contains(x_adv, x).all()
    assert not torch.equal(x_adv, x)


@each
def test_leaves_everything_as_found(name: str, net: Net, rng: Rng) -> None:
    attack = made(name)
    x, rows = samples(9, rng, net)
    before = state(net)
    attack(net, x, rows, rng=rng)
    assert state(net) == before


@each
@pytest.mark.parametrize("calls", [0, 1])
def test_leaves_everything_as_found_when_the_model_breaks(name: str, calls: int, net: Net, rng: Rng) -> None:
    x, rows = samples(9, rng, net)
    source = Net(seed=1).double()
    attack = build(name, Threat(LInf(), 0.01), source=source)
    before = state(net, source)
    net.calls_left = source.calls_left = calls
    if asks_the_model(name, Net().double(), rng) or name == "transfer":
        if calls and name == "fgsm":
            return  # it asks only once
        with pytest.raises(RuntimeError, match="the model broke"):
            attack(net, x, rows, rng=rng)
    else:
        attack(net, x, rows, rng=rng)
    assert state(net, source) == before


@each
def test_randomness_comes_from_the_rng_alone(name: str, net: Net, rng: Rng) -> None:
    attack = made(name)
    x, rows = samples(9, rng, net)
    first = attack(net, x, rows, rng=rng)
    torch.manual_seed(1)
    assert torch.equal(attack(net, x, rows, rng=Rng(0)), first)
    assert torch.equal(attack(net, x, rows, rng=Rng(1)), first) == (name not in RANDOM)


@each
@in_every_norm
def test_a_result_does_not_depend_on_the_neighbours(
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
        torch.testing.assert_close(other, together[which], atol=1e-9, rtol=0)


@each
def test_labels_alone_are_named_by_position(name: str, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    alone = made(name)(net, x, rows.y, rng=rng)
    assert torch.equal(alone, made(name)(net, x, Rows(rows.y, torch.arange(4)), rng=rng))


@each
@in_every_norm
@pytest.mark.parametrize("b", [0, 1])
def test_batches_of_none_and_one(name: str, norm: str, b: int, net: Net, rng: Rng) -> None:
    x, rows = samples(b, rng, net)
    x_adv = made(name, norm)(net, x, rows, rng=rng)
    assert x_adv.shape == (b, 2, 4, 4)
    assert made(name, norm).threat.contains(x_adv, x).all()


@each
@in_every_norm
def test_no_room_means_no_change(name: str, norm: str, net: Net, rng: Rng) -> None:
    x, rows = samples(3, rng, net)
    assert torch.equal(made(name, norm).at(0.0)(net, x, rows, rng=rng), x)


@each
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
def test_works_where_gradients_are_off(
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
def test_bad_input_is_refused_in_one_sentence(name: str, words: str, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    with pytest.raises(ValueError, match=words) as caught:
        made(name)(net, *BAD[words](x, rows.y), rng=rng)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "noise"])  # which asks no model and cannot know
@pytest.mark.parametrize("label", [-1, 3])
def test_labels_without_a_logit_are_refused(name: str, label: int, net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    with pytest.raises(ValueError, match=r"labels span .* but the model has classes 0\.\.2"):
        made(name)(net, x, rows.y.index_fill(0, torch.tensor([2]), label), rng=rng)


@each
def test_negative_eps_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"eps is -0\.1 but a radius must be zero or more"):
        made(name).at(-0.1)


@pytest.mark.parametrize("name", having("loss"))
def test_what_a_loss_is_given_leaves_with_its_sample(
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


@each
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
    attack = member(name)(threat=Threat(LInf(), 0.2), step=0.05)
    assert attack.at(0.1).step == pytest.approx(0.025)
    assert attack.at(0.0).step == 0
    assert attack.at(inf).step == member(name)(threat=Threat(LInf(), inf), step=0.05).at(0.1).step == 0.05
    assert member(name)(threat=Threat(LInf(), 0.2)).at(0.1).step is None


@pytest.mark.parametrize("name", having("step"))
@pytest.mark.parametrize("step", [-0.1, inf, float("nan")])
def test_steps_that_lead_nowhere_are_refused(name: str, step: float) -> None:
    with pytest.raises(ValueError, match="a step must be finite and not negative"):
        member(name)(threat=Threat(LInf(), 0.2), step=step)


@each
def test_an_infinite_eps_without_a_step_is_refused(name: str, net: Net, rng: Rng) -> None:
    """Otherwise steps and starts are infinite, and so are the inputs."""
    x, rows = samples(3, rng, net)
    with pytest.raises(ValueError, match="eps is infinite"):
        made(name).at(inf)(net, x, rows, rng=rng)


@pytest.mark.parametrize("name", having("steps"))
@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps_are_refused(name: str, steps: int) -> None:
    with pytest.raises(ValueError, match=f"steps is {steps} and restarts 1 but an attack needs at least one of each"):
        member(name)(threat=Threat(LInf(), 0.2), steps=steps)


@pytest.mark.parametrize("name", having("keep"))
def test_an_unknown_keep_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="keep is 'best' but it must be one of fooled, last, worst, closest"):
        member(name)(threat=Threat(LInf(), 0.2), keep="best")


@each
@pytest.mark.parametrize("micro", [3, 256])
def test_watched_costs_are_the_true_ones(
    name: str, micro: int, net: Net, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microbatch, "size", lambda: micro)
    x, rows = samples(8, rng, net)
    target, source = Counted(net), Counted(Net(seed=1).double())
    attack = build(name, Threat(LInf(), 0.05), source=source)
    costs: list[Cost] = []

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        assert len(rows) == len(x_adv) == len(loss) == cost.forwards
        assert not x_adv.requires_grad
        assert not loss.requires_grad
        assert attack.threat.contains(x_adv, x[(rows.index[:, None] == all_rows.index[None]).long().argmax(1)]).all()
        costs.append(cost)

    all_rows = rows
    watched = attack(target, x, rows, rng=rng, watch=watch)
    assert sum(costs, Cost()) == target.cost + source.cost
    assert torch.equal(watched, attack(net, x, rows, rng=rng))
    assert all(size <= micro for size in target.sizes + source.sizes)
    if name == "transfer":
        assert target.cost == Cost()
