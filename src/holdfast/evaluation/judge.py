"""The independent judge: recomputes in float32 whether each adversarial example counts, whatever the attack claims."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.contracts import Attack, Rows, Watch
from holdfast.crafting.view import frozen
from holdfast.data import Split
from holdfast.geometry import Threat
from holdfast.rng import Rng

CHUNK = 500
DRAWS = 10  # of the random numbers of a randomized model
_FEW = 8  # samples on which two draws are compared


@dataclass(frozen=True)
class Verdict:
    """Per sample: whether the point fools the model from inside the threat, its distance, and the predicted label.

    ``right`` (b, draws) tells which draws of a randomized model classify the point correctly. Such a model is fooled
    if one of the draws is, and the label is that of the first draw that misclassifies.
    """

    fooled: Tensor
    distance: Tensor
    label: Tensor
    inside: Tensor
    right: Tensor


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, rng: Rng) -> Tensor:
    """(b,) predicted classes in float32 and eval mode; -1 where the logits are not finite."""
    with _float32(), frozen(model, rng) as view:
        parts = [_decide(view(part.float())) for part in torch.split(x, CHUNK)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def drawn(model: nn.Module, x: Tensor, rng: Rng, draws: int = DRAWS) -> Tensor:
    """(b, draws) predicted classes, each column with fresh random numbers; one draw is that of :func:`predict`."""
    rngs = [rng] if draws == 1 else [rng.fork(f"draw {number}") for number in range(draws)]
    return torch.stack([predict(model, x, fresh) for fresh in rngs], 1)


@torch.no_grad()
def randomized(model: nn.Module, x: Tensor, rng: Rng) -> bool:
    """True if two draws of the model's random numbers give different logits for the first few samples."""
    few = x[:_FEW].float()

    def logits(number: int) -> Tensor:
        with _float32(), frozen(model, rng.fork(f"draw {number}")) as view:
            return view(few)

    # a tolerance, because some devices add in an order that varies
    return not torch.allclose(logits(0), logits(1), rtol=1e-4, atol=1e-6, equal_nan=True)


def _decide(logits: Tensor) -> Tensor:
    return torch.where(logits.isfinite().all(1), logits.argmax(1), -1)


@contextmanager
def _float32() -> Iterator[None]:
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


def judge(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, threat: Threat, rng: Rng, draws: int = 1) -> Verdict:
    """Whether each point is inside the threat and fools the model; a point outside counts as not fooled.

    A randomized model is evaluated with fresh noise, in ``draws`` draws: ``rng`` must not be the one that the attack
    was given.
    """
    if x_adv.shape != x.shape:
        raise ValueError(f"the attack returned shape {tuple(x_adv.shape)} for inputs of shape {tuple(x.shape)}")
    inside = threat.contains(x_adv, x)
    labels = drawn(model, torch.where(inside.reshape(-1, *[1] * (x.ndim - 1)), x_adv, x), rng, draws)
    right = labels == y[:, None]
    label = labels.gather(1, (~right).long().argmax(1, keepdim=True)).squeeze(1)
    distance = threat.norm.length(x_adv.double().cpu() - x.double().cpu()).to(x.device)
    return Verdict(inside & (label != y), torch.where(inside, distance, torch.nan), label, inside, right)


def attack_and_judge(
    model: nn.Module,
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
    """Adversarial examples and the verdict on them; ``change`` is applied to the examples before they are judged."""
    x_adv = attack(model, x, rows, rng=rng, watch=watch)
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
