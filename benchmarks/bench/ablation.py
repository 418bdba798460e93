"""Figure 7: each speed-up turned off alone. What is worth nothing should be removed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bench.peers import usual
from bench.subjects import SUBJECTS, Bench, Subject
from bench.timing import Times, interleaved
from holdfast import PGD, Rng
from holdfast.crafting import blocks, folding, fused, layers, microbatch
from holdfast.crafting.unchanged import Unchanged

_MICRO = (32, 64, 128, 256, 512)
_HUGE, _SMALL = 1 << 30, 50

_made: dict[str, WeakKeyDictionary[Any, Any]] = {}

Off = Callable[[], AbstractContextManager[None]]


@contextmanager
def replaced(module: ModuleType | type, name: str, value: object) -> Iterator[None]:
    """A name of a module or class with another value, for the time of the context."""
    before = getattr(module, name)  # a name that is gone is an error here, not a silent ablation of nothing
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def no_folding() -> AbstractContextManager[None]:
    """Batch norm stays where it is."""
    return replaced(folding, "folded", lambda model, dtype=None: "turned off")


@contextmanager
def otherwise(name: str, module: ModuleType, value: object) -> Iterator[None]:
    """Folded networks made with another value of a name, and kept apart from the others."""
    with replaced(module, name, value), replaced(folding, "_known", _made.setdefault(name, WeakKeyDictionary())):
        yield


# images stay plane by plane in the folded network
no_channels_last = partial(otherwise, "channels_last", torch, torch.contiguous_format)
# every layer is a node of autograd's graph
not_fused = partial(otherwise, "join", fused, lambda graph: [])
# large linear layers multiply as PyTorch does by default
no_onednn = partial(otherwise, "worth_packing", layers, lambda weight: False)
# oneDNN brings weights into its order in every product
no_packing = partial(replaced, folding, "OFTEN", 1 << 30)
# the gradient of images is computed pixel by pixel
no_blocks = partial(otherwise, "side", blocks, lambda conv: 1)
# weights are folded and packed in every call
not_cached = partial(replaced, Unchanged, "__call__", lambda self, tensors: False)


def ablation(bench: Bench, name: str) -> dict[str, Any]:
    """What folding, micro-batches and letting samples leave are worth, as time with it off over time as it is."""
    subject, sizes = SUBJECTS[name], bench.sizes(name)
    x, y = bench.samples(name, sizes.ablated)
    defended, plain = bench.robust(name), bench.undefended(name)
    last = partial(_run, defended, x, y, subject, sizes.timed_steps, "last")
    fooled = partial(_run, plain, x, y, subject, sizes.timed_steps, "fooled")
    worst = partial(_run, plain, x, y, subject, sizes.timed_steps, "worst")
    full = {"as it is": partial(last, nullcontext), "no folding": partial(last, no_folding)}
    full |= {"no channels-last": partial(last, no_channels_last), "not fused": partial(last, not_fused)}
    full |= {"no packing": partial(last, no_packing), "no blocks of pixels": partial(last, no_blocks)}
    full |= {"no oneDNN products": partial(last, no_onednn)}
    full |= {f"micro-batch {size}": partial(last, partial(microbatch.micro, size)) for size in _MICRO}
    early = {
        "as it is": partial(fooled, nullcontext),
        "nobody leaves": partial(worst, nullcontext),
        "nobody takes the place of who left": partial(_apart, plain, x, y, subject, sizes.timed_steps),
        "all samples in one batch": partial(fooled, partial(microbatch.micro, _HUGE)),
    }
    small = partial(_run, defended, x[:_SMALL], y[:_SMALL], subject, sizes.timed_steps, "last")
    few = {"as it is": partial(small, nullcontext), "no packing": partial(small, no_packing)}
    few |= {"no oneDNN products": partial(small, no_onednn), "not cached": partial(small, not_cached)}
    rows, failed = [], {}
    for model, calls in (("defended, full cost", full), (f"defended, {_SMALL} samples", few), ("undefended", early)):
        times = interleaved(calls, bench.budget.repeats)
        rows += [{"model": model, "what": what, **_worth(times, what)} for what in times.seconds]
        failed |= times.failed
    told = [row for row in rows if row["what"].startswith("no")]
    words = [f"{name}, {row['model']}, {row['what']}: times as long" for row in told]
    headlines = [
        {"what": what, "value": row["ratio"], "wanted": "", "met": None} for what, row in zip(words, told, strict=True)
    ]
    facts = {"n": len(x), "repeats": bench.budget.repeats, "steps": sizes.timed_steps, "eps": subject.eps}
    facts |= {"micro": microbatch.USUAL, "dtype": usual(), "failed": failed}
    return {"facts": facts | {"data": bench.data_name(name)}, "rows": rows, "headlines": headlines}


def _run(model: nn.Module, x: Tensor, y: Tensor, subject: Subject, steps: int, keep: Any, off: Off) -> Tensor:
    with off():
        return PGD(threat=subject.threat, steps=steps, keep=keep)(model, x, y, rng=Rng(0))


def _apart(model: nn.Module, x: Tensor, y: Tensor, subject: Subject, steps: int) -> None:
    """One micro-batch after another, each until its last sample is done."""
    for some, labels in zip(x.split(microbatch.USUAL), y.split(microbatch.USUAL), strict=True):
        _run(model, some, labels, subject, steps, "fooled", nullcontext)


def _worth(times: Times, what: str) -> dict[str, Any]:
    return {"median": times.median(what), **times.ratio(what, "as it is"), "seconds": times.seconds[what]}
