"""The gradient loop: which iterate it returns, what restarts keep, when samples leave, how it fills micro-batches."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from subjects import Counted, Net, samples
from torch import Tensor, nn

from holdfast.attacks._ascent import FEW
from holdfast.attacks._gradients import gradient
from holdfast.attacks.bim import BIM
from holdfast.attacks.multi_targeted import MultiTargeted
from holdfast.attacks.pgd import PGD
from holdfast.contracts import Cost, Keep, Loss, Outputs, Rows
from holdfast.crafting import microbatch
from holdfast.geometry import LInf, Threat
from holdfast.losses.classification import cross_entropy, logit_difference
from holdfast.rng import Rng

LINE = Threat(LInf(), 1.0, -10, 10)


class Band(nn.Module):
    """Misclassifies a number exactly if its absolute value is between ``low`` and ``high``."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        inside = (x.abs() > self.low) & (x.abs() < self.high)
        return torch.cat([0 * x, torch.where(inside, 1.0, -1.0) + 0 * x], 1)


def rightwards(out: Outputs, rows: Rows) -> Tensor:
    return out.x[:, 0]


def toward(place: float) -> Loss:
    return lambda out, rows: -(out.x[:, 0] - place).abs()


def walk(keep: Keep, model: nn.Module, loss: Loss) -> float:
    attack = BIM(threat=LINE, steps=5, step=0.1, keep=keep, loss=loss)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return attack(model, zero, torch.zeros(1, dtype=torch.int64), rng=Rng(0)).item()


@pytest.mark.parametrize(("keep", "place"), [("fooled", 0.2), ("closest", 0.2), ("worst", 0.3), ("last", 0.5)])
def test_which_iterate_is_returned(keep: Keep, place: float) -> None:
    """The iterates are 0, .1, .2, .3, .4, .5 with growing loss; only .2 and .3 are misclassified."""
    assert walk(keep, Band(0.15, 0.35), rightwards) == pytest.approx(place)


@pytest.mark.parametrize(("keep", "place"), [("fooled", 0.3), ("closest", 0.0), ("worst", 0.2), ("last", 0.3)])
def test_which_iterate_is_returned_when_none_fools(keep: Keep, place: float) -> None:
    """The iterates are 0, .1, .2, .3, .2, .3, and the loss is largest at .2."""
    assert walk(keep, Band(5, 6), toward(0.22)) == pytest.approx(place)


@pytest.mark.parametrize(("keep", "place"), [("worst", 0.5), ("closest", 0.5), ("fooled", 0.5), ("last", 0.5)])
def test_the_last_iterate_is_not_lost(keep: Keep, place: float) -> None:
    """Only the last iterate is misclassified: the attack may evaluate it or return it unseen, but not miss it."""
    assert walk(keep, Band(0.45, 0.55), rightwards) == pytest.approx(place)


def test_the_closest_iterate_may_come_after_the_first_misclassified_one(rng: Rng) -> None:
    """From a random start the walk returns to x, so a later misclassified iterate is closer than the first."""
    attack = PGD(threat=LINE, steps=20, step=0.05, loss=toward(0.0))
    x, y = torch.zeros(60, 1, dtype=torch.float64), torch.zeros(60, dtype=torch.int64)
    start = LINE.sample(x, rng.fork("start").at(torch.arange(60)).at(torch.zeros(60))).abs()
    far = start > 0.2
    model = Band(0.2, 2)
    assert 20 < far.sum() < 60
    first = attack(model, x, y, rng=rng).abs()
    nearest = replace(attack, keep="closest")(model, x, y, rng=rng).abs()
    torch.testing.assert_close(first[far], start[far])
    on_the_way = start - 0.05 * torch.ceil((start - 0.25) / 0.05).clamp_min(0)
    torch.testing.assert_close(nearest[far], on_the_way[far])


History = dict[int, list[tuple[bool, float, float, Tensor]]]


def watched(attack: PGD, model: Net, x: Tensor, rows: Rows, rng: Rng) -> tuple[Tensor, History]:
    """The result, and per sample (fooled, loss, length, point) of each evaluated iterate, in order."""
    history: History = defaultdict(list)
    place = {index: i for i, index in enumerate(rows.index.tolist())}

    def watch(seen: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        fooled = (model(x_adv).argmax(1) != seen.y).tolist()
        for i, index in enumerate(seen.index.tolist()):
            length = (x_adv[i] - x[place[index]]).abs().max().item()
            history[place[index]].append((fooled[i], loss[i].item(), length, x_adv[i].clone()))

    return attack(model, x, rows, rng=rng, watch=watch), history


@pytest.fixture
def net() -> Net:
    return Net().double().eval()


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("keep", ["worst", "closest", "fooled"])
def test_the_best_evaluated_iterate_is_returned(keep: Keep, restarts: int, net: Net, rng: Rng) -> None:
    attack = PGD(threat=Threat(LInf(), 0.04), steps=4, restarts=restarts, keep=keep)
    x, rows = samples(30, rng, net)
    found, history = watched(attack, net, x, rows, rng)
    fooled = [any(seen[0] for seen in history[i]) for i in range(30)]
    assert 3 < sum(fooled) < 27  # both cases occur
    for i, seen in history.items():
        if keep == "fooled":
            assert [f for f, *_ in seen[:-1]] == [False] * (len(seen) - 1)  # stopped at the first success
            best = seen[-1][3]
            if restarts == 1 and not fooled[i]:
                continue  # the last iterate is returned without being evaluated
        else:
            assert len(seen) == restarts * 5
            value = 1 if keep == "worst" else 2
            rank = max(seen, key=lambda s: (s[0], s[1] if value == 1 else -s[2]))
            best = rank[3]
        assert torch.equal(found[i], best)


@pytest.mark.parametrize("keep", ["fooled", "worst", "closest"])
def test_more_restarts_and_more_steps_never_raise_the_accuracy(keep: Keep, net: Net, rng: Rng) -> None:
    x, rows = samples(60, rng, net)
    few = PGD(threat=Threat(LInf(), 0.05), steps=2, step=0.01, keep=keep)

    def holds(attack: PGD) -> Tensor:
        return net(attack(net, x, rows, rng=rng)).argmax(1) == rows.y

    previous = holds(few)
    for more in (replace(few, restarts=2), replace(few, restarts=4), replace(few, restarts=8)):
        now = holds(more)
        assert not (now & ~previous).any()
        previous = now
    by_restarts = previous
    previous = holds(few)
    for more in (replace(few, steps=3), replace(few, steps=6), replace(few, steps=12)):
        now = holds(more)
        assert not (now & ~previous).any()
        previous = now
    assert by_restarts.sum() < holds(few).sum()
    assert previous.sum() < holds(few).sum()


def test_each_restart_draws_another_start_around_the_clean_input(net: Net, rng: Rng) -> None:
    x, rows = samples(6, rng, net)
    attack = PGD(threat=Threat(LInf(), 0.01), steps=3, restarts=4, keep="worst")
    _, history = watched(attack, net, x, rows, rng)
    for i, seen in history.items():
        starts = torch.stack([point for *_, point in seen[::4]])
        drawn = rng.fork("start").at(rows.index[i : i + 1])
        for k, start in enumerate(starts):
            expected = attack.threat.sample(x[i : i + 1], drawn.at(torch.tensor([k])))
            assert torch.equal(start, expected[0])
        assert len(starts.flatten(1).unique(dim=0)) == 4


@pytest.mark.parametrize(("keep", "restarts"), [("fooled", 1), ("worst", 1), ("worst", 2), ("last", 1)])
@pytest.mark.parametrize("micro", [1, 4, 64])
def test_micro_batches_are_full_while_samples_wait(
    keep: Keep, restarts: int, micro: int, net: Net, rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass has min(micro, unfinished samples) rows, so no pass is spent on finished samples."""
    monkeypatch.setattr(microbatch, "size", lambda: micro)
    steps, counted = 3, Counted(net)
    passes = restarts * (steps + (keep == "worst" or restarts > 1))
    attack = PGD(threat=Threat(LInf(), 0.05), steps=steps, restarts=restarts, keep=keep, loss=logit_difference)
    x, rows = samples(23, rng, net)
    left = dict.fromkeys(rows.index.tolist(), passes)
    expected: list[int] = []

    def watch(seen: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        expected.append(min(micro, len(left)))
        for index, value in zip(seen.index.tolist(), loss.tolist(), strict=True):
            left[index] -= 1  # a KeyError if the sample was finished
            if left[index] == 0 or (keep == "fooled" and value > 0):
                del left[index]

    attack(counted, x, rows, rng=rng, watch=watch)
    assert counted.sizes == expected
    assert not left
    if keep == "fooled":
        assert counted.cost.forwards < 23 * passes
    else:
        assert counted.cost.forwards == 23 * passes


@pytest.mark.parametrize("micro", [2, 7, 64])
def test_runs_at_once_return_what_runs_in_turn_return(micro: int, net: Net, rng: Rng) -> None:
    """With one slot the runs of a sample follow each other; with more slots they share micro-batches."""
    counted, x, rows = Counted(net), *samples(23, rng, net)
    attack = MultiTargeted(threat=Threat(LInf(), 0.02), steps=3, restarts=2)
    with microbatch.micro(1):
        expected = attack(net, x, rows, rng=rng)
    with microbatch.micro(micro):
        torch.testing.assert_close(attack(counted, x, rows, rng=rng), expected)
    assert 0 < (net(expected).argmax(1) != rows.y).sum() < 23
    assert max(counted.sizes) == min(micro, 23) or max(counted.sizes) > 23  # the later runs fill the empty slots


def test_later_runs_wait_for_the_first_one(net: Net, rng: Rng) -> None:
    """Of many samples, one that its first run fools costs no pass of a second one, however many slots are free."""
    n = FEW + 1
    counted, x, rows = Counted(net), *samples(n, rng, net)
    one = PGD(threat=Threat(LInf(), 0.5), steps=5, restarts=2, loss=logit_difference)
    assert (net(replace(one, restarts=1)(net, x, rows, rng=rng)).argmax(1) != rows.y).all()
    one(counted, x, rows, rng=rng)
    assert max(counted.sizes) == n
    assert counted.cost.forwards <= n * 6


@pytest.mark.parametrize("restarts", [1, 3])
def test_the_runs_of_few_samples_begin_together_and_give_what_they_give_one_after_the_other(
    net: Net, rng: Rng, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = PGD(threat=Threat(LInf(), 0.04), steps=4, restarts=restarts, keep="fooled")
    counted, x, rows = Counted(net), *samples(FEW, rng, net)
    together = attack(counted, x, rows, rng=rng)
    assert max(counted.sizes) == FEW * restarts
    monkeypatch.setattr("holdfast.attacks._ascent.FEW", 0)
    assert torch.equal(together, attack(net, x, rows, rng=rng))


@pytest.mark.parametrize("bad", [{"keep": "last"}, {"restarts": 0}, {"restarts": -1}])
def test_useless_restarts_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="restarts"):
        PGD(**{"threat": LINE, "restarts": 2, **bad})


@pytest.mark.parametrize("steps", [0, -1])
def test_fewer_than_one_step_is_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=f"steps is {steps} and restarts 1 but an attack needs at least one of each"):
        BIM(threat=LINE, steps=steps)


def test_the_closest_iterate_makes_an_attack_minimal() -> None:
    attack = BIM(threat=LINE, keep="closest")
    assert attack.minimal
    assert not replace(attack, keep="fooled").minimal


def test_a_reduced_loss_is_refused(net: Net, rng: Rng) -> None:
    x, rows = samples(4, rng, net)
    attack = PGD(threat=Threat(LInf(), 0.1), steps=2, loss=lambda out, rows: cross_entropy(out, rows).mean())
    with pytest.raises(ValueError, match=r"the loss has shape \(\) for 4 samples but one number per sample is needed"):
        attack(net, x, rows, rng=rng)


class Detached(nn.Module):
    """Its logits do not depend on the input through autograd."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach().flatten(1)[:, :3].round()


def test_a_model_without_input_gradients_is_refused(rng: Rng) -> None:
    with pytest.raises(ValueError, match="does not depend on the input through autograd"):
        BIM(threat=Threat(LInf(), 0.1))(Detached(), torch.rand(2, 4), torch.zeros(2, dtype=torch.int64), rng=rng)


def test_gradients_are_per_sample_sums_and_never_nan() -> None:
    x = torch.tensor([[4.0, 0.0, -1.0], [9.0, 1.0, 1.0]], requires_grad=True)
    grad = gradient(x.sqrt().sum(1), x)
    assert grad[0, 0] == 0.25
    assert grad[0, 1] == torch.finfo(torch.float32).max  # infinitely steep, still a direction
    assert grad[0, 2] == 0  # not a number, so no direction
    alone = x[1:].detach().requires_grad_()
    assert torch.equal(grad[1:], gradient(alone.sqrt().sum(1), alone))
