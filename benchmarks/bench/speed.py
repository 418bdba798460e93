"""Figures 1, 3 and 4: how long PGD takes, what share of the machine it uses, what it gains where samples fall early."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bench.peers import OURS, SAME, Pgd, dtypes, ours_leaving, passes, usual
from bench.strength import LEAVING, held
from bench.subjects import SUBJECTS, Bench, Subject
from bench.timing import PRODUCT_FLOPS, Times, interleaved, product
from holdfast import PGD, Rng, Rows
from holdfast.contracts import Meter
from holdfast.crafting import microbatch
from holdfast.crafting.view import described, frozen
from holdfast.losses.classification import cross_entropy

FIRST = next(iter(OURS))
_WANTED = {"mlp": 0.95, "lenet": 1.15, "conv": 1.15}
_UNDEFENDED_STEPS = 40


def step_of(subject: Subject, steps: int) -> float:
    """A step size that crosses the ball from any start, the same for everybody."""
    return 2.5 * subject.eps / steps


def pgd(bench: Bench, name: str) -> dict[str, Any]:
    """Figure 1: PGD at full cost, no sample drops out, ours and every peer in turns."""
    subject, steps, model = SUBJECTS[name], bench.sizes(name).timed_steps, bench.robust(name)
    step = step_of(subject, steps)
    everybody = {who: craft for who, (_, craft) in OURS.items()} | dict(bench.field.present)
    rows, headlines, failed = [], [], {}
    for batch in bench.budget.batches:
        x, y = bench.samples(name, batch)
        calls = {who: partial(craft, model, x, y, subject.eps, step, steps) for who, craft in everybody.items()}
        times = interleaved(calls, bench.budget.repeats)
        failed |= times.failed
        for who in times.seconds:
            counted = passes(everybody[who], model, x[:2], y[:2], subject.eps, step, steps)
            rows.append({"batch": len(x), "library": who, **_row(times, who), **counted})
        headlines += [_against_fastest(times, who, name, len(x)) for who in OURS if who in times.seconds]
    facts = {"n": [row["batch"] for row in rows if row["library"] == FIRST], "repeats": bench.budget.repeats}
    facts |= {"steps": steps, "step": step, "eps": subject.eps, "failed": failed, "view": described(model)}
    facts |= {"dtype": dtypes(), "data": bench.data_name(name)}
    return {"facts": facts, "rows": rows, "headlines": [line for line in headlines if line]}


def _row(times: Times, who: str) -> dict[str, Any]:
    ratio = times.ratio(who, FIRST) if FIRST in times.seconds else {}
    return {"median": times.median(who), **ratio, "seconds": times.seconds[who]}


def _against_fastest(times: Times, who: str, name: str, batch: int) -> dict[str, Any] | None:
    best = times.fastest(SAME)
    if best is None:
        return None
    ratio, wanted = times.ratio(best, who)["ratio"], _WANTED[name] if who == FIRST else 2.0
    what = f"{who}, {name}, batch {batch}: times as fast as the fastest peer ({best})"
    return {"what": what, "value": ratio, "wanted": f">= {wanted}", "met": ratio >= wanted}


def flops(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Floating-point operations of one forward pass and its gradient in the input, as torch counts them."""
    with frozen(model, Rng(0)) as view, FlopCounterMode(display=False) as counter:
        here = x.clone().requires_grad_()
        cross_entropy(view.outputs(here), Rows.of(y)).sum().backward()  # the counter does not know autograd.grad
    return int(counter.get_total_flops())


def share(bench: Bench, name: str) -> dict[str, Any]:
    """Figure 3: operations per second of our PGD as a share of a 2048-cubed matrix product of the same type."""
    subject, steps, model = SUBJECTS[name], bench.sizes(name).timed_steps, bench.robust(name)
    x, y = bench.samples(name, max(bench.budget.batches))
    work = flops(model, x, y) * steps
    rows, headlines = [], []
    for who, (dtype, craft) in OURS.items():
        run = partial(craft, model, x, y, subject.eps, step_of(subject, steps), steps)
        times = interleaved({who: run, "product": product(dtype)}, bench.budget.repeats)
        reached, peak = work / times.median(who), PRODUCT_FLOPS / times.median("product")
        rows.append({"library": who, "gflops": reached / 1e9, "product gflops": peak / 1e9, "share": reached / peak})
        wanted = {"wanted": ">= 0.6", "met": reached / peak >= 0.6} if name == "lenet" else {"wanted": "", "met": None}
        what = f"{who}, {name}: share of the matrix product's operations per second"
        headlines.append({"what": what, "value": reached / peak, **wanted})
    facts = {"n": len(x), "repeats": bench.budget.repeats, "steps": steps, "flops": work, "dtype": dtypes()}
    return {"facts": facts | {"data": bench.data_name(name)}, "rows": rows, "headlines": headlines}


def undefended(bench: Bench, name: str) -> dict[str, Any]:
    """Figure 4: PGD-40 on an undefended model, where ours lets samples leave as they fall, beside the fastest peer."""
    subject, model = SUBJECTS[name], bench.undefended(name)
    x, y = bench.samples(name, bench.sizes(name).undefended)
    step = step_of(subject, _UNDEFENDED_STEPS)
    rivals = _fastest_peer(bench, model, subject, x, y)
    size = microbatch.measured(model, x, y)  # as an evaluation does, once

    def mine(*asked: Any) -> Tensor:
        with microbatch.micro(size):
            return ours_leaving(*asked)

    calls: dict[str, Pgd] = {LEAVING: mine, **rivals}
    run = {who: partial(craft, model, x, y, subject.eps, step, _UNDEFENDED_STEPS) for who, craft in calls.items()}
    times = interleaved(run, bench.budget.repeats)
    rows = []
    for who in times.seconds:
        robust = float(held(model, x, calls[who](model, x, y, subject.eps, step, _UNDEFENDED_STEPS), y, subject).mean())
        rows.append({"library": who, "median": times.median(who), "robust": robust, "seconds": times.seconds[who]})
    headlines = []
    for rival in rivals:
        ratio = times.ratio(rival, LEAVING)
        what = f"{name}, undefended, PGD-40: times as fast as the fastest peer ({rival})"
        headlines.append({"what": what, "value": ratio["ratio"], "wanted": ">= 10", "met": ratio["ratio"] >= 10})
    facts = {"n": len(x), "repeats": bench.budget.repeats, "steps": _UNDEFENDED_STEPS, "step": step, "dtype": usual()}
    facts |= {"eps": subject.eps, "data": bench.data_name(name), "failed": times.failed}
    facts |= {"micro": size, "forwards per sample": _forwards(model, x, y, subject, step)}
    return {"facts": facts, "rows": rows, "headlines": headlines}


def _forwards(model: nn.Module, x: Tensor, y: Tensor, subject: Subject, step: float) -> float:
    meter = Meter()
    PGD(threat=subject.threat, steps=_UNDEFENDED_STEPS, step=step)(model, x, y, rng=Rng(0), watch=meter)
    return meter.cost.forwards / len(x)


def _fastest_peer(bench: Bench, model: nn.Module, subject: Subject, x: Tensor, y: Tensor) -> dict[str, Pgd]:
    """The fastest of the peers that have PGD, by a short trial: forty steps of each would take an hour."""
    x, y, steps = x[:50], y[:50], 3
    able = {who: craft for who, craft in bench.field.present.items() if who in SAME}
    calls = {who: partial(craft, model, x, y, subject.eps, subject.eps, steps) for who, craft in able.items()}
    best = interleaved(calls, 3).fastest(SAME)
    return {} if best is None else {best: able[best]}
