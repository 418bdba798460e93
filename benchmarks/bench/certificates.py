"""Exact certificates of nearest neighbors: seconds for each input beside those of the authors' released code."""

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bench.timing import peak_memory
from holdfast import Rng
from holdfast.certify.neighbors import Neighbors
from holdfast.data import load as load_data

AUTHORS = {"usps": 0.30, "letter": 0.065, "pendigits": 0.036, "satimage": 0.028, "splice": 0.005}
"""Seconds for each input, Euclidean, of wangwllu/provably_robust_metric_learning on a machine like ours."""
WANTED = {"usps": 5.0, "letter": 5.0}
GROWTH = (1000, 2000, 4000, 7000)


@dataclass(frozen=True)
class Sizes:
    """How many inputs are certified, how often, and at how many training points."""

    inputs: int
    repeats: int
    growth: tuple[int, ...]


FULL, TINY = Sizes(1000, 3, GROWTH), Sizes(20, 2, (100, 200))


@dataclass(frozen=True)
class Sets:
    """The data sets: from a folder, or random numbers of about the same shape where only the script is tried."""

    folder: Path | None

    def __call__(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Training points, their labels, and inputs."""
        if self.folder is None:
            rng = Rng(0).fork(name)
            x = rng.uniform(torch.empty(400, 8))
            return x[:300], (3 * x[:300, 0]).long(), x[300:]
        data = load_data(name, self.folder.parent, valid=1)
        kept = [data.train, data.valid]  # the benchmark fits nothing, so all of the file is training points
        return torch.cat([part.x for part in kept]), torch.cat([part.y for part in kept]), data.test.spread(1000).x


def sets(tiny: bool) -> Sets:
    """The sets under HOLDFAST_DATA/libsvm."""
    if tiny:
        return Sets(None)
    folder = Path(os.environ.get("HOLDFAST_DATA", "data")) / "libsvm"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} holds no data; let HOLDFAST_DATA name the folder above libsvm/usps, usps.t …"
        )
    return Sets(folder)


def exact(load: Sets, name: str, sizes: Sizes) -> dict[str, Any]:
    """Seconds for each input against the whole training set, and how far the two bounds are apart."""
    points, labels, x = load(name)
    x = x[: sizes.inputs]
    seconds, found = _timed(points, labels, x, sizes.repeats)
    per_input = median(seconds)
    ratio = AUTHORS[name] / per_input
    gap = float((found.upper - found.radius).max())
    row = {"points": len(points), "features": points.shape[1], "s/input": per_input, "authors": AUTHORS[name]}
    row |= {"times as fast": ratio, "largest gap": gap, "mean radius": float(found.radius.mean()), "seconds": seconds}
    wanted = WANTED.get(name)
    head = {"what": f"{name}: times as fast as the authors' code", "value": ratio}
    head |= {"wanted": f">= {wanted:g}" if wanted else "", "met": ratio >= wanted if wanted else None}
    facts = {"n": len(x), "repeats": sizes.repeats, "data": name, "dtype": "float64", "memory": peak_memory()}
    return {"facts": facts, "rows": [row], "headlines": [head]}


def growth(load: Sets, name: str, sizes: Sizes) -> dict[str, Any]:
    """Seconds for each input as the training set grows, its points spread evenly over the file."""
    points, labels, x = load(name)
    x, rows = x[: sizes.inputs], []
    for many in sizes.growth:
        which = torch.arange(many) * len(points) // many
        seconds, _ = _timed(points[which], labels[which], x, sizes.repeats)
        rows.append({"points": many, "s/input": median(seconds), "seconds": seconds})
    times = rows[-1]["s/input"] / rows[0]["s/input"]
    head = {"what": f"{name}: {sizes.growth[-1]} points take so many times {sizes.growth[0]}", "value": times}
    facts = {"n": len(x), "repeats": sizes.repeats, "data": name, "dtype": "float64", "memory": peak_memory()}
    return {"facts": facts, "rows": rows, "headlines": [head | {"wanted": "", "met": None}]}


def _timed(points: Tensor, labels: Tensor, x: Tensor, repeats: int) -> tuple[list[float], Any]:
    """Seconds for each input, with all preparation, after a call that is not counted."""
    Neighbors(points=points, labels=labels)(x[:8], rng=Rng(0))
    seconds, found = [], None
    for _ in range(repeats):
        started = perf_counter()
        found = Neighbors(points=points, labels=labels)(x, rng=Rng(0))
        seconds.append((perf_counter() - started) / len(x))
    return seconds, found
