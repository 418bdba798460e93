"""Figure of the metric learners: 100 iterations on USPS beside metric-learn, and what the objectives come to."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import sklearn
import torch

from bench.timing import interleaved
from holdfast import data
from holdfast.learners import ARML, ITML, LMNN
from holdfast.learners._triplets import Classes
from holdfast.learners.itml import other_class, same_class
from holdfast.learners.lmnn import Objective

PUBLISHED = {"LMNN": 146.1 / 66.4, "ITML": 146.1 / 95.2, "NCA": 146.1 / 480.9}  # seconds of 100 iterations, Wang 2020
GAMMA, TARGETS, PULL = 1.0, 3, 0.5


@dataclass(frozen=True)
class Budget:
    """How much is fitted; NCA, whose iterations all cost the same, runs few of them, and its time is scaled up."""

    samples: int | None
    iterations: int
    nca_iterations: int
    turns: int


TINY, FULL = Budget(300, 3, 2, 1), Budget(None, 100, 2, 1)


def samples(budget: Budget) -> tuple[np.ndarray, np.ndarray, str]:
    """USPS's training part, else digits."""
    try:
        found = data.load("usps")
    except FileNotFoundError:
        found = data.load("digits")
    part = found.train.spread(budget.samples)
    return part.x.flatten(1).double().numpy(), part.y.numpy(), found.name


def theirs(name: str, many: int) -> Any:
    """metric-learn's learner of this name with so many iterations, whatever happens on the way."""
    import metric_learn

    if name == "LMNN":  # its loop runs from 2 up to max_iter
        return metric_learn.LMNN(n_neighbors=TARGETS, regularization=PULL, max_iter=many + 2, convergence_tol=0)
    if name == "ITML":
        return metric_learn.ITML_Supervised(gamma=GAMMA, max_iter=many, tol=0, random_state=0)
    return metric_learn.NCA(max_iter=many, tol=1e-12)


def ours(name: str, many: int) -> Any:
    """Our learner of this name with so many iterations."""
    if name == "LMNN":
        return LMNN(n_neighbors=TARGETS, pull=PULL, max_iter=many, tol=-1.0)
    if name == "ITML":
        return ITML(gamma=GAMMA, max_iter=many, tol=0, random_state=0)
    return ARML(max_iter=many, tol=None, random_state=0, refresh=1 if name == "ARML-1" else 5)


def fits(budget: Budget) -> dict[str, Any]:
    """All learners in turns; ratios of medians and, for LMNN and ITML, the objectives of both."""
    x, y, name = samples(budget)
    iterations = dict.fromkeys(["ARML", "ARML-1", "LMNN", "ITML"], budget.iterations)
    peers = {"LMNN": budget.iterations, "ITML": budget.iterations, "NCA": budget.nca_iterations}
    fitted: dict[str, Any] = {}

    def fit(who: str, make: Callable[[str, int], Any], learner: str, many: int) -> Callable[[], None]:
        def call() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # stopping early is intended
                fitted[who] = make(learner, many).fit(x, y)

        return call

    calls = {f"holdfast {one}": fit(f"holdfast {one}", ours, one, many) for one, many in iterations.items()}
    calls |= {f"metric-learn {one}": fit(f"metric-learn {one}", theirs, one, many) for one, many in peers.items()}
    times = interleaved(calls, budget.turns)
    scale = {"metric-learn NCA": budget.iterations / budget.nca_iterations}
    took = {who: times.median(who) * scale.get(who, 1) for who in times.seconds}
    rows = [
        {
            "learner": who,
            "seconds": took[who],
            "iterations": getattr(fitted[who], "n_iter_", ""),
            "turns": times.seconds[who],
        }
        for who in took
    ]
    headlines = _times(took) + _objectives(x, y, fitted, budget)
    facts = {
        "n": len(x),
        "repeats": budget.turns,
        "data": name,
        "failed": times.failed,
        "scikit-learn": sklearn.__version__,
    }
    facts |= {"nca_iterations": budget.nca_iterations, "iterations": budget.iterations}
    if not any(who.startswith("metric-learn") for who in times.failed):
        facts["metric-learn"] = version("metric-learn")
    return {"facts": facts, "rows": rows, "headlines": headlines}


def _times(took: dict[str, float]) -> list[dict[str, Any]]:
    pairs = [(arml, peer) for peer in ("LMNN", "ITML", "NCA") for arml in ("ARML", "ARML-1")]
    lines = []
    for mine, peer in [*pairs, ("LMNN", "LMNN"), ("ITML", "ITML")]:
        if f"metric-learn {peer}" in took and f"holdfast {mine}" in took:
            ratio = took[f"holdfast {mine}"] / took[f"metric-learn {peer}"]
            said = f", published {PUBLISHED[peer]:.2f}" if mine.startswith("ARML") else ""
            what = f"{mine}: times metric-learn's {peer}{said}"
            lines.append({"what": what, "value": ratio, "wanted": "< 1", "met": ratio < 1})
    return lines


def _objectives(x: np.ndarray, y: np.ndarray, fitted: dict[str, Any], budget: Budget) -> list[dict[str, Any]]:
    if not {"holdfast LMNN", "metric-learn LMNN"} <= set(fitted):
        return []
    values = [lmnn_objective(x, y, fitted[f"{who} LMNN"].components_) for who in ("holdfast", "metric-learn")]
    lines = [_compared("LMNN", *values)]
    return [*lines, _compared("ITML, equal pairs", *_itml_objectives(x, y, budget))]


def _compared(name: str, mine: float, other: float) -> dict[str, Any]:
    what = f"{name}: objective {mine:.6g} where metric-learn ends at {other:.6g}; ratio"
    return {"what": what, "value": mine / other, "wanted": "<= 1", "met": mine <= other * (1 + 1e-6)}


def lmnn_objective(x: np.ndarray, y: np.ndarray, components: np.ndarray) -> float:
    """LMNN's objective with all impostors."""
    classes = Classes.of(torch.from_numpy(np.unique(y, return_inverse=True)[1]))
    objective = Objective(torch.from_numpy(x)[classes.order], classes, TARGETS, PULL, len(x))
    objective.search(torch.from_numpy(components))
    return objective(torch.from_numpy(components))[0]


def _itml_objectives(x: np.ndarray, y: np.ndarray, budget: Budget) -> tuple[float, float]:
    """Both with the same pairs and bounds; whose they are does not matter."""
    import metric_learn

    from holdfast.learners.itml import Projections

    labels = np.unique(y, return_inverse=True)[1]
    random, many = np.random.RandomState(0), 20 * (labels.max() + 1) ** 2
    index = np.concatenate([np.stack(draw(labels, many, random), 1) for draw in (same_class, other_class)])
    pairs, sign = x[index], np.repeat([1.0, -1.0], many)
    v = pairs[:, 0] - pairs[:, 1]
    kept = (v**2).sum(1) > 0
    pairs, sign, v = pairs[kept], sign[kept], v[kept]
    low, high = np.percentile((v**2).sum(1), (5, 95))
    projections = Projections(torch.from_numpy(v), sign, (low, high), GAMMA)
    for _ in range(budget.iterations):
        projections.cycle()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = metric_learn.ITML(gamma=GAMMA, max_iter=budget.iterations, tol=0).fit(pairs, sign, bounds=[low, high])
    return (
        itml_objective(projections.matrix.numpy(), v, sign, low, high),
        itml_objective(other.get_mahalanobis_matrix(), v, sign, low, high),
    )


def itml_objective(matrix: np.ndarray, v: np.ndarray, sign: np.ndarray, low: float, high: float) -> float:
    """LogDet divergence from the identity plus gamma times that of the least slack which admits the matrix."""
    lengths = np.einsum("ni,ni->n", v @ matrix, v)
    slack = np.where(sign > 0, np.maximum(lengths / low, 1), np.minimum(lengths / high, 1))
    divergence = np.trace(matrix) - np.linalg.slogdet(matrix)[1] - len(matrix)
    return float(divergence + GAMMA * (slack - np.log(slack) - 1).sum())
