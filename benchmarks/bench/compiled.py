"""Figure 9: torch.compile instead of crafting's fused layers: how long it compiles, and how fast a step is then."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.subjects import Bench, fresh
from bench.timing import interleaved
from holdfast import Rng, arithmetic
from holdfast.crafting import crafting, frozen

_BATCH = 50


def compiled(bench: Bench, name: str) -> dict[str, Any]:
    """One input gradient in float32 by the module, by the compiled module and by crafting's view of it."""
    model = fresh(name).eval()
    x, y = bench.samples(name, _BATCH)
    with arithmetic("float32"), frozen(model, Rng(0)), crafting(model, Rng(0), passes=40) as view:
        optimized = torch.compile(model)
        first = _seconds(lambda: _gradient(optimized, x, y))
        calls: dict[str, Callable[[], Tensor]] = {
            "module": lambda: _gradient(model, x, y),
            "torch.compile": lambda: _gradient(optimized, x, y),
            "crafting": lambda: _gradient(view, x, y),
        }
        times = interleaved(calls, 4 * bench.budget.repeats)
    rows = [{"what": who, "median": times.median(who), **times.ratio(who, "crafting")} for who in times.seconds]
    headlines = [{"what": f"{name}, torch.compile: seconds before the first step", "value": first}]
    headlines += [{"what": f"{name}, {row['what']}: times as long as crafting", "value": row["ratio"]} for row in rows]
    facts = {"n": _BATCH, "repeats": 4 * bench.budget.repeats, "dtype": "float32", "failed": times.failed}
    return {"facts": facts, "rows": rows, "headlines": [line | {"wanted": "", "met": None} for line in headlines]}


def _gradient(model: Any, x: Tensor, y: Tensor) -> Tensor:
    here = x.clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(here), y, reduction="sum")
    return torch.autograd.grad(loss, here)[0]


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
