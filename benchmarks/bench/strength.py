"""Figure 2: is the fast attack as strong? Robust accuracy under ours and each peer, judged by holdfast's judge."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.peers import OURS, PEERS, SAME, Pgd, dtypes, ours_leaving, said
from bench.subjects import SUBJECTS, Bench, Subject
from holdfast import Rng
from holdfast.evaluation.judge import judge, predict

PART = 250  # peers are given so many samples at once: all at once would not fit into memory
LEAVING = "holdfast, leaving"
_LEVEL = 0.01

Mask = NDArray[np.bool_]


def one_sided(first: Mask, second: Mask) -> float:
    """The exact p of McNemar's test against the alternative that more is true of the first than of the second."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    n, tail, term = only_first + only_second, 1, 1
    for k in range(only_second):  # P(X >= only_first) is P(X <= only_second), X binomial(n, 1/2); whole numbers
        term = term * (n - k) // (k + 1)
        tail += term
    return tail / (1 << n)


def held(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, subject: Subject) -> Mask:
    """Per sample: right on the clean input and not fooled by this point."""
    right = predict(model, x, Rng(1)) == y
    fooled = judge(model, x, x_adv, y, subject.threat, Rng(2)).fooled
    return (right & ~fooled).numpy()


def strength(bench: Bench, name: str) -> dict[str, Any]:
    """Robust accuracy under ours and under each peer at equal steps, and whether ours leaves more samples standing."""
    subject, sizes, model = SUBJECTS[name], bench.sizes(name), bench.robust(name)
    x, y = bench.samples(name, sizes.judged)
    settings = (subject.eps, 2.5 * subject.eps / sizes.judged_steps, sizes.judged_steps)
    mine = {who: craft for who, (_, craft) in OURS.items()} | {LEAVING: ours_leaving}
    stood: dict[str, Mask] = {}
    rows, failed = [], {}
    for who, craft in [*mine.items(), *bench.field.present.items()]:
        started = time.perf_counter()
        try:
            x_adv = craft(model, x, y, *settings) if who in mine else torch.cat([*_parts(craft, model, x, y, settings)])
        except Exception as error:  # a peer may fail in any way, and the others are still to be judged
            failed[who] = said(error)
            continue
        seconds = time.perf_counter() - started
        stood[who] = held(model, x, x_adv, y, subject)
        outside = int((~subject.threat.contains(x_adv, x)).sum())
        rows.append({"library": who, "robust": float(stood[who].mean()), "outside": outside, "seconds": seconds})
    for row in rows:
        row |= {f"p against {own}": one_sided(stood[own], stood[row["library"]]) for own in mine if own in stood}
    headlines = [line for own in mine if own in stood and (line := _line(stood, own, name))]
    clean = float((predict(model, x, Rng(1)) == y).float().mean())
    facts = {"n": len(x), "repeats": 1, "clean": clean, "eps": settings[0], "step": settings[1], "steps": settings[2]}
    facts |= {"data": bench.data_name(name), "dtype": dtypes(), "failed": failed}
    return {"facts": facts, "rows": rows, "headlines": headlines}


def _parts(craft: Pgd, model: nn.Module, x: Tensor, y: Tensor, settings: tuple[float, float, int]) -> Iterator[Tensor]:
    for some, labels in zip(x.split(PART), y.split(PART), strict=True):
        yield craft(model, some, labels, *settings)


def _line(stood: dict[str, Mask], own: str, name: str) -> dict[str, Any] | None:
    """Beside the peer of the same kind that comes out strongest; APGD is another algorithm, shown but not compared."""
    kinds = {"last", "fooled"} if own == LEAVING else {"last"}
    rivals = [rival for rival in stood if rival in SAME and PEERS[rival].keeps in kinds]
    if not rivals:
        return None
    p, rival = min((one_sided(stood[own], stood[rival]), rival) for rival in rivals)
    shares = f"{stood[own].mean():.2%}, with {rival} {stood[rival].mean():.2%}"
    what = f"{name}, robust accuracy under {own}: {shares}; one-sided p that ours leaves more"
    return {"what": what, "value": p, "wanted": f"> {_LEVEL}", "met": p > _LEVEL}
