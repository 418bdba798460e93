"""The independent judge: recomputes in float32 whether each adversarial example counts, whatever the attack claims."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Attack, Outputs, Predictor, Rows, Watch
from holdfast.crafting.view import frozen
from holdfast.data import Split
from holdfast.geometry import Threat
from holdfast.losses.classification import logit_difference
from holdfast.rng import Rng

CHUNK = 500
DRAWS = 10  # of the random numbers of a randomized model
FEW = 8  # samples on which two draws are compared


@dataclass(frozen=True)
class Verdict:
    """Per sample: whether the point fools the model from inside the threat, its distance, and the predicted label.

    ``right`` (b, draws) tells which draws of a randomized model classify the point correctly. Such a model is fooled
    if one of the draws is, and the label is that of the first draw that misclassifies. Where the model abstains, a
    wrong label does not fool it. ``margin`` is the largest wrong logit minus the true one in the first draw, -inf where
    it is not finite.
    """

    fooled: Tensor
    distance: Tensor
    label: Tensor
    inside: Tensor
    right: Tensor
    margin: Tensor


def predict(model: Predictor, x: Tensor, rng: Rng) -> Tensor:
    """(b,) predicted classes in float32 and eval mode; -1 where the logits are not finite.

    A callable that is not a module is given x in its own type; it returns labels or scores.
    """
    return _decide(_answers(model, x, rng))


def drawn(model: Predictor, x: Tensor, rng: Rng, draws: int = DRAWS) -> Tensor:
    """(b, draws) predicted classes, each column with fresh random numbers; one draw is that of :func:`predict`."""
    return torch.stack([_decide(out) for out in _each_draw(model, x, rng, draws)], 1)


def abstains(model: Predictor, x: Tensor, rng: Rng) -> Tensor | None:
    """(b,) where a network that has a method ``abstains`` gives no answer; None for any other model."""
    ask = getattr(model, "abstains", None)
    if ask is None or not isinstance(model, nn.Module):
        return None
    with torch.no_grad(), float32(), frozen(model, rng):
        return torch.cat([ask(part.float()) for part in torch.split(x, CHUNK)])


def _each_draw(model: Predictor, x: Tensor, rng: Rng, draws: int) -> list[Tensor]:
    rngs = [rng] if draws == 1 else [rng.fork(f"draw {number}") for number in range(draws)]
    return [_answers(model, x, fresh) for fresh in rngs]


@torch.no_grad()
def _answers(model: Predictor, x: Tensor, rng: Rng) -> Tensor:
    with float32(), _answering(model, rng) as ask:
        return torch.cat([ask(part) for part in torch.split(x, CHUNK)])


@contextmanager
def _answering(model: Predictor, rng: Rng) -> Iterator[Predictor]:
    if isinstance(model, nn.Module):
        with frozen(model, rng) as view:
            yield lambda x: view(x.float())
    else:
        yield model


def randomized(model: nn.Module, x: Tensor, rng: Rng) -> bool:
    """True if two draws of the model's random numbers give different logits for the first few samples."""
    first, second = _each_draw(model, x[:FEW], rng, 2)
    # a tolerance, because some devices add in an order that varies
    return not torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def _decide(out: Tensor) -> Tensor:
    return out if out.ndim == 1 else torch.where(out.isfinite().all(1), out.argmax(1), -1)


def _margin(out: Tensor, y: Tensor) -> Tensor:
    """The largest wrong score minus the true one; -inf where a score is not finite, or there are only labels."""
    if out.ndim == 1:
        return torch.full(out.shape, -torch.inf, device=out.device)
    difference = logit_difference(Outputs(out, out, out), Rows.of(y))
    return difference.where(out.isfinite().all(1), -torch.inf)


@contextmanager
def float32() -> Iterator[None]:
    """Compute in full float32 whatever the caller's settings: no autocast, no reduced-precision products."""
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    convolutions = cudnn.allow_tf32  # on by default; the matmul precision does not control it
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
        cudnn.allow_tf32 = convolutions


def judge(model: Predictor, x: Tensor, x_adv: Tensor, y: Tensor, threat: Threat, rng: Rng, draws: int = 1) -> Verdict:
    """Whether each point is inside the threat and fools the model; a point outside counts as not fooled.

    A randomized model is evaluated with fresh noise, in ``draws`` draws: ``rng`` must not be the one that the attack
    was given.
    """
    if x_adv.shape != x.shape:
        raise ValueError(f"the attack returned shape {tuple(x_adv.shape)} for inputs of shape {tuple(x.shape)}")
    inside = threat.contains(x_adv, x)
    points = torch.where(inside.reshape(-1, *[1] * (x.ndim - 1)), x_adv, x)
    outs = _each_draw(model, points, rng, draws)
    labels = torch.stack([_decide(out) for out in outs], 1)
    right = labels == y[:, None]
    if (rejected := abstains(model, points, rng)) is not None:
        right |= rejected[:, None]
    label = labels.gather(1, (~right).long().argmax(1, keepdim=True)).squeeze(1)
    distance = threat.norm.length(x_adv.double().cpu() - x.double().cpu()).to(x.device)
    distance = torch.where(inside, distance, torch.nan)
    return Verdict(inside & ~right.all(1), distance, label, inside, right, _margin(outs[0], y))


def attack_and_judge(
    model: Predictor,
    attack: Attack,
    x: Tensor,
    rows: Rows,
    *,
    rng: Rng,
    judge_rng: Rng,
    watch: Watch | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    draws: int = 1,
) -> tuple[Tensor, Verdict]:
    """Adversarial examples and the verdict on them; ``change`` is applied to the examples before they are judged.

    The model is a module, or any callable if the attack is a black-box attack.
    """
    x_adv = attack(cast(nn.Module, model), x, rows, rng=rng, watch=watch)
    if change is not None:
        x_adv = change(x_adv)
    return x_adv, judge(model, x, x_adv, rows.y, attack.threat, judge_rng, draws)


def accuracy(model: nn.Module, split: Split, attack: Attack, device: torch.device, rng: Rng) -> tuple[float, float]:
    """Clean and robust accuracy on a split under one attack; misclassified samples are not attacked."""
    batch = split.batch(torch.arange(len(split)), device)
    right = predict(model, batch.x, rng.fork("clean")) == batch.y
    x, rows = batch.x[right], Rows(batch.y[right], batch.index[right])
    _, verdict = attack_and_judge(model, attack, x, rows, rng=rng.fork("attack"), judge_rng=rng.fork("judge"))
    n = len(split)
    return int(right.sum()) / n, int((~verdict.fooled).sum()) / n
