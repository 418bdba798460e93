"""Certificates of networks: CROWN in batches and beside auto_LiRPA, smoothing beside plain forward passes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from bench.peers import said
from bench.timing import forget_peak, interleaved, peak_memory
from holdfast import Rng, zoo
from holdfast.certify._bounds import activations, propagate
from holdfast.certify._bounds.certifier import margin_rows
from holdfast.certify._bounds.network import convert
from holdfast.certify._bounds.propagate import Bounds
from holdfast.certify._bounds.region import Region
from holdfast.certify.crown import CROWN
from holdfast.certify.smoothing import Smoothing
from holdfast.data import load_test
from holdfast.geometry import L2, LInf
from holdfast.models.classifier import Classifier
from holdfast.models.encoders.mlp import MLP
from holdfast.models.heads.linear import Linear

PEER = "AUTO_LIRPA_PYTHON"  # names the python of an environment with auto_LiRPA
SHARE, CLOSE = 0.8, 1e-4
_COVERED = "least of ours - theirs, float32 covered"
_REAL = "least of ours - theirs, in real numbers"
_BATCH = 1000  # noisy copies per plain forward pass, as smoothing has


@dataclass(frozen=True)
class Sizes:
    """The width of the mlp, images to certify, of them one by one, noisy copies, images to smooth, and turns."""

    width: int
    images: int
    single: int
    n: int
    smoothed: int
    repeats: int


FULL, TINY = Sizes(1024, 100, 10, 10_000, 10, 3), Sizes(16, 3, 2, 200, 2, 1)


def network(width: int) -> nn.Module:
    """An mlp as the library builds it, with weights as they are before training: times do not depend on them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Classifier(MLP((1, 28, 28), width=width), Linear(width, 10)).eval()


def images(n: int) -> Tensor:
    """Images of uniform noise."""
    return Rng(0).uniform(torch.empty(n, 1, 28, 28))


def smoothing(name: str, sizes: Sizes) -> dict[str, Any]:
    """Noisy copies per second of CERTIFY, and of plain forward passes of as many images that are already there."""
    model, x = network(sizes.width), images(sizes.smoothed)
    certify = Smoothing(model=model, n=sizes.n, selection=100)
    copies = sizes.smoothed * (sizes.n + 100)
    passes = max(1, copies // _BATCH)
    ready = Rng(1).normal(torch.empty(_BATCH, 1, 28, 28))

    @torch.no_grad()
    def plain() -> None:
        for _ in range(passes):
            model(ready)

    times = interleaved({"smoothing": lambda: certify(x, rng=Rng(0)), "plain": plain}, sizes.repeats)
    each = {"smoothing": copies, "plain": passes * _BATCH}
    rates = {one: each[one] / times.median(one) for one in each}
    rows = [{"what": one, "copies/s": rate, "images/s": rate / (sizes.n + 100)} for one, rate in rates.items()]
    share = rates["smoothing"] / rates["plain"]
    head = {"what": f"{name}: smoothing, share of the plain throughput", "value": share}
    head |= {"wanted": f">= {SHARE}", "met": share >= SHARE}
    return {"facts": {"n": sizes.n, "repeats": sizes.repeats, "dtype": "float32"}, "rows": rows, "headlines": [head]}


def sequential(name: str, sizes: Sizes) -> dict[str, Any]:
    """Copies that the sequential test draws at one given radius for inputs of known probability, and its time.

    The network says 1 if the mean of the noisy image exceeds a half, so that the true radius is known.
    """
    model, sigma, side = nn.Sequential(nn.Flatten(), nn.Linear(784, 2)), 0.5, 28
    model[1].weight.data = torch.stack([torch.zeros(784), torch.full((784,), 1 / side)])
    model[1].bias.data = torch.tensor([0.0, -0.5 * side])
    true = torch.tensor([0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4])
    x = torch.full((len(true), 1, side, side), 0.5) + true[:, None, None, None] / side
    asked = 0.5
    started = perf_counter()
    fixed, _ = Smoothing(model=model, sigma=sigma, n=sizes.n).examine(x, rng=Rng(0))
    between = perf_counter()
    certify = Smoothing(model=model, sigma=sigma, n=sizes.n, radii=(asked,) if sizes.n > 1000 else (0.1,))
    found, drawn = certify.examine(x, rng=Rng(0))
    ended = perf_counter()
    rows = [
        {"true radius": float(t), "radius after n": float(f), "proved": float(r), "copies": int(d)}
        for t, f, r, d in zip(true, fixed.radius, found.radius, drawn, strict=True)
    ]
    spent = float(drawn.sum()) / (len(x) * (sizes.n + 100))
    heads = [
        {"what": f"{name}: copies of the sequential test over those of a fixed n", "value": spent},
        {"what": f"{name}: seconds of the sequential test over those of a fixed n",
         "value": (ended - between) / (between - started)},
    ]  # fmt: skip
    heads = [head | {"wanted": "", "met": None} for head in heads]
    return {"facts": {"n": sizes.n, "repeats": 1, "dtype": "float32"}, "rows": rows, "headlines": heads}


def batch(name: str, sizes: Sizes) -> dict[str, Any]:
    """CROWN at one radius, linf: all images at once and one by one; processor time, and the most memory, each way."""
    model, x = network(sizes.width), images(sizes.images)
    certify = CROWN(model=model, radii=(1e-3,))
    certify(x[:1], rng=Rng(0))
    ways = {"one by one": x[: sizes.single].split(1), "one batch": [x]}
    rows = []
    for way, parts in ways.items():
        forget_peak()
        before, started = peak_memory(), process_time()
        for part in parts:
            certify(part, rng=Rng(0))
        each = (process_time() - started) / sum(map(len, parts))
        peak = peak_memory() / 2**20
        rows.append({"how": way, "images": sum(map(len, parts)), "CPU s/image": each, "loaded MB": before / 2**20})
        rows[-1] |= {"peak MB": peak}
    value = rows[0]["CPU s/image"] / rows[1]["CPU s/image"]
    head = {"what": f"{name}: one by one takes so many times one batch", "value": value, "wanted": "", "met": None}
    facts = {"n": sizes.images, "repeats": 1, "eps": 1e-3, "dtype": "float64"}
    return {"facts": facts, "rows": rows, "headlines": [head]}


def allowance(name: str, sizes: Sizes) -> dict[str, Any]:
    """How much of the radii of trained models goes to the rounding errors of a float32 forward pass.

    ``name`` is a model of the zoo, whose data may be missing.
    """
    model, source = zoo.load_model(name), zoo.card(name).data
    try:
        test = load_test(source, samples=sizes.smoothed).test
    except (OSError, ValueError) as error:
        return {"facts": {"absent": {source: said(error)}}, "rows": [], "headlines": []}
    rows, x = [], test.batch(torch.arange(len(test))).x
    for norm in (LInf(), L2()):
        certify = CROWN(model=model, norm=norm, tolerance=1e-5)
        covered = certify(x, rng=Rng(0)).radius
        with _real_numbers():
            real = certify(x, rng=Rng(0)).radius
        lost = float((1 - covered / real)[real > 0].max())
        rows.append({"norm": norm.name, "median radius": float(covered.median()), "largest share lost": lost})
    head = {"what": f"{name}: largest share of a radius that covers rounding", "wanted": "", "met": None}
    head["value"] = max(row["largest share lost"] for row in rows)
    return {"facts": {"n": len(x), "repeats": 1, "dtype": "float64"}, "rows": rows, "headlines": [head]}


def lirpa(name: str, sizes: Sizes) -> dict[str, Any]:
    """Lower bounds of all margins beside those of auto_LiRPA's CROWN on the same regions, in processor time."""
    cases, rows, heads = list(_CASES[name](sizes)), [], []
    facts: dict[str, Any] = {"n": len(cases[0]["x"]), "repeats": 1, "dtype": "ours float64, auto_LiRPA float32"}
    try:
        theirs = _theirs(cases)
    except (OSError, RuntimeError) as error:
        return {"facts": facts | {"absent": {"auto_LiRPA": said(error)}}, "rows": [], "headlines": []}
    ours = [_ours(case) for case in cases]
    with _real_numbers():
        real = [_ours(case)[0] for case in cases]
    facts["versions"] = {"auto_LiRPA": theirs["version"], "torch": theirs["torch"]}
    for case, (mine, seconds), exact, other in zip(cases, ours, real, theirs["cases"], strict=True):
        apart, alike = (lower - other["lower"].double() for lower in (mine, exact))
        row = {"network": case["name"], "norm": case["norm"], "eps": case["eps"], "ours CPU s": seconds}
        row |= {"auto_LiRPA CPU s": other["seconds"], "mean bound": float(mine.mean())}
        row |= {_COVERED: float(apart.min()), "mean": float(apart.mean())}
        rows.append(row | {_REAL: float(alike.min())})
    for column in (_COVERED, _REAL):
        least = min(row[column] for row in rows)
        head = {"what": f"{name}: {column}, auto_LiRPA {theirs['version']}", "value": least}
        heads.append(head | {"wanted": f">= -{CLOSE:g}", "met": least >= -CLOSE})
    return {"facts": facts, "rows": rows, "headlines": heads}


def _wide(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """The mlp as the library builds it, of plain layers, which need no holdfast where they are read."""
    built, x = network(sizes.width), images(4)
    assert isinstance(built, Classifier)
    layers = [layer for layer in built.modules() if not list(layer.children())]
    model = nn.Sequential(*layers[:-1], nn.Linear(sizes.width, 10)).eval()
    model[-1].load_state_dict(layers[-1].state_dict())
    rows = margin_rows(model(x).argmax(1), 10).float()
    for norm, eps in (("linf", 0.001), ("l2", 0.02)):
        yield {"name": "mlp", "model": model, "x": x, "rows": rows, "norm": norm, "eps": eps}


def _small(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Networks of plain layers, made with a fixed seed, each in both norms."""
    wide = sizes.width // 8
    nets = {
        "mlp": [nn.Flatten(), *_hidden(144, wide), *_hidden(wide, wide), nn.Linear(wide, 10)],
        "mlp, batch norm": [nn.Flatten(), nn.Linear(144, wide), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, 10)],
        "conv": [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
                 nn.Linear(200, 10)],
        "conv, average": [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(100, 10)],
    }  # fmt: skip
    for number, (name, layers) in enumerate(nets.items()):
        model, rng = nn.Sequential(*layers).eval(), Rng(number)
        for key, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.is_floating_point():
                drawn = rng.fork(key).normal(torch.empty_like(value))
                scale = value[0].numel() ** -0.5 if value.ndim > 1 else 0.3
                value.data = drawn.abs() + 0.5 if key.endswith("running_var") else scale * drawn
        x = rng.fork("x").uniform(torch.empty(20, 1, 12, 12))
        rows = margin_rows(model(x).argmax(1), 10).float()
        for norm, radii in (("linf", (0.01, 0.05)), ("l2", (0.1, 0.5))):
            yield from ({"name": name, "model": model, "x": x, "rows": rows, "norm": norm, "eps": r} for r in radii)


_CASES = {"small": _small, "mlp": _wide}


def _hidden(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU()]


@torch.no_grad()
def _ours(case: dict[str, Any]) -> tuple[Tensor, float]:
    x = case["x"].double()
    box = (0.0, 1.0) if case["norm"] == "linf" else (-torch.inf, torch.inf)
    for _ in range(2):  # the first call is not counted
        started = process_time()
        net = convert(case["model"], x)
        region = Region(x, torch.full((len(x),), case["eps"], dtype=torch.float64), case["norm"], box)
        lower = Bounds(net, region).lower(net.output, case["rows"].double())
        seconds = process_time() - started
    return lower, seconds


@contextmanager
def _real_numbers() -> Iterator[None]:
    """Our bounds without the allowance for rounding in float32, which auto_LiRPA's bounds do not have either."""

    def nothing(_terms: float, size: Tensor) -> Tensor:
        return torch.zeros_like(size)

    with patch.object(propagate, "rounding", nothing), patch.object(activations, "rounding", nothing):
        yield


def _theirs(cases: list[dict[str, Any]]) -> dict[str, Any]:
    if PEER not in os.environ:
        raise RuntimeError(f"{PEER} does not name the python of an environment with torch and auto_LiRPA")
    with TemporaryDirectory() as folder:
        given, out = Path(folder) / "given.pt", Path(folder) / "out.pt"
        torch.save({"threads": torch.get_num_threads(), "cases": cases}, given)
        script = Path(__file__).with_name("lirpa_peer.py")
        command = [os.environ[PEER], str(script), str(given), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        found: dict[str, Any] = torch.load(out, weights_only=False)
        return found
