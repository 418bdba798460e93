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


@dataclass(frozen=True)
class Verdict:
    """Per sample: whether the point fools the model from inside the threat, its distance, and the predicted label."""

    fooled: Tensor
    distance: Tensor
    label: Tensor
    inside: Tensor


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, rng: Rng) -> Tensor:
    """(b,) predicted classes in float32 and eval mode; -1 where the logits are not finite."""
    with _float32(), frozen(model, rng) as view:
        logits = torch.cat([view(part.float()) for part in torch.split(x, CHUNK)])
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


def judge(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, threat: Threat, rng: Rng) -> Verdict:
    """Whether each point is inside the threat and fools the model; a point outside counts as not fooled.

    A randomized model is evaluated with fresh noise: ``rng`` must not be the one that the attack was given.
    """
    if x_adv.shape != x.shape:
        raise ValueError(f"the attack returned shape {tuple(x_adv.shape)} for inputs of shape {tuple(x.shape)}")
    inside = threat.contains(x_adv, x)
    label = predict(model, torch.where(inside.reshape(-1, *[1] * (x.ndim - 1)), x_adv, x), rng)
    distance = threat.norm.length(x_adv.double().cpu() - x.double().cpu()).to(x.device)
    return Verdict(inside & (label != y), torch.where(inside, distance, torch.nan), label, inside)


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
) -> tuple[Tensor, Verdict]:
    """Adversarial examples and the verdict on them; ``change`` is applied to the examples before they are judged."""
    x_adv = attack(model, x, rows, rng=rng, watch=watch)
    if change is not None:
        x_adv = change(x_adv)
    return x_adv, judge(model, x, x_adv, rows.y, attack.threat, judge_rng)


def accuracy(model: nn.Module, split: Split, attack: Attack, device: torch.device, rng: Rng) -> tuple[float, float]:
    """Clean and robust accuracy on a split under one attack; misclassified samples are not attacked."""
    batch = split.batch(torch.arange(len(split)), device)
    right = predict(model, batch.x, rng.fork("clean")) == batch.y
    x, rows = batch.x[right], Rows(batch.y[right], batch.index[right])
    _, verdict = attack_and_judge(model, attack, x, rows, rng=rng.fork("attack"), judge_rng=rng.fork("judge"))
    n = len(split)
    return int(right.sum()) / n, int((~verdict.fooled).sum()) / n
