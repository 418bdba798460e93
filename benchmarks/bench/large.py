"""Figure of large data: learners and certificates on MNIST, seconds and peak memory, each in a process of its own.

``python -m bench.large WHAT N THREADS`` is that process: it prints one line of JSON.
"""

import json
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor

from bench.memory import in_process
from bench.timing import forget_peak, peak_memory
from holdfast import data
from holdfast.certify.neighbors import Neighbors
from holdfast.learners import ARML, ITML, LMNN
from holdfast.rng import Rng

LEARNERS = {"ARML": ARML, "LMNN": LMNN, "ITML": ITML}
WHAT = (*LEARNERS, "certificates")
SIZES, TINY = (15000, 60000), (100, 200)
ITERATIONS, INPUTS = 2, 20


def large(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Every learner and the exact certificates with few and with many points: memory may not grow faster than they."""
    rows = [in_process("bench.large", what, str(n), str(torch.get_num_threads())) for what in WHAT for n in sizes]
    headlines = []
    for what in WHAT:
        few, *_, many = [row for row in rows if row["what"] == what]
        grown, allowed = many["peak MB"] / few["peak MB"], many["points"] / few["points"]
        said = f"{what}: peak memory with {many['points']} points over that with {few['points']}"
        headlines.append({"what": said, "value": grown, "wanted": f"<= {allowed:g}", "met": grown <= allowed})
    facts = {"n": list(sizes), "repeats": 1, "iterations": ITERATIONS, "inputs": INPUTS, "data": _points(1)[2]}
    return {"facts": facts, "rows": rows, "headlines": headlines}


def _points(n: int) -> tuple[Tensor, Tensor, str]:
    """The first points of MNIST, those of its test part at the end; digits where there is no MNIST."""
    try:
        found = data.load("mnist", valid=1)
    except FileNotFoundError:
        found = data.load("digits", valid=1)
    x, y = (torch.cat([getattr(part, name)[:n] for part in (found.train, found.test)]) for name in ("x", "y"))
    return x[:n].double().flatten(1), y[:n], found.name


def main(what: str, n: str, threads: str) -> None:
    """Fit or certify and say what it took."""
    torch.set_num_threads(int(threads))
    x, y, _ = _points(int(n))
    forget_peak()
    loaded, started = peak_memory(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stopping early is intended
        if what in LEARNERS:
            LEARNERS[what](max_iter=ITERATIONS).fit(x.numpy(), y.numpy())
        else:
            Neighbors(points=x[INPUTS:], labels=y[INPUTS:])(x[:INPUTS], rng=Rng(0))
    sizes = {"loaded MB": loaded / 2**20, "peak MB": peak_memory() / 2**20}
    print(json.dumps({"what": what, "points": len(x), "seconds": time.perf_counter() - started, **sizes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
