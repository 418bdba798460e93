"""Synthetic records: nothing here trains or attacks anything."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records, array_name, column_name
from holdfast.report.study import Run, Study

ATTACKS = {
    "PGD-40": AttackFacts(
        norm="linf", eps=0.3, seconds=12.5, forwards=20_000, backwards=20_000, settings={"steps": 40}
    ),
    "PGD-40 at 0.1": AttackFacts(norm="linf", eps=0.1, seconds=12.0, forwards=20_000, backwards=20_000),
    "FGSM": AttackFacts(norm="linf", eps=0.3, seconds=0.4, forwards=1000, backwards=500),
    "PGD-L2": AttackFacts(norm="l2", eps=1.5, seconds=9.0, forwards=20_000, backwards=20_000),
}


def _columns(rng: np.random.Generator, n: int, clean: float, strength: float) -> dict[str, np.ndarray]:
    y = rng.integers(0, 10, n)
    label = np.where(rng.random(n) < clean, y, (y + 1) % 10)
    columns = {"index": np.arange(n) * 3, "y": y, "label": label}
    breaks_at = rng.gamma(2.0, strength / 2, n)  # the eps at which a perfect attack fools each sample
    for name, attack in ATTACKS.items():
        skill = 0.55 if name == "FGSM" else 0.95
        reach = attack.eps if attack.norm == "linf" else attack.eps / 6
        fooled = (label != y) | ((breaks_at <= reach) & (rng.random(n) < skill))
        columns[column_name("fooled", attack.norm, name)] = fooled
        columns[column_name("distance", attack.norm, name)] = np.full(n, attack.eps * (1 + 1e-7))
        columns[column_name("label", attack.norm, name)] = np.where(fooled, (y + 3) % 10, y)
    return columns


def _arrays(rng: np.random.Generator, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    clean = rng.random((6, 1, 8, 8)).astype(np.float32)
    moved = np.clip(clean + rng.choice([-0.3, 0.3], clean.shape), 0, 1).astype(np.float32)
    arrays = {"shown": columns["index"][:6], "clean": clean}
    return arrays | {array_name("linf", name): moved for name in ("PGD-40", "FGSM")}


def _metrics(rng: np.random.Generator, final: float) -> list[dict[str, object]]:
    train = [
        {"step": s, "epoch": s // 100, "split": "train", "loss": 2.3 * np.exp(-s / 200) + 0.1 * rng.random()}
        for s in range(0, 600, 5)
    ]
    valid = [
        {"step": 100 * e, "epoch": e, "split": "valid", "clean": 0.95 - 0.4 / e, "robust": final * (1 - 0.5 / e)}
        for e in range(1, 7)
    ]
    return [*train, *valid]


def _make_run(name: str, seed: int, *, clean: float = 0.95, strength: float = 0.4, n: int = 500) -> Run:
    rng = np.random.default_rng([seed, int(strength * 1000)])
    columns = _columns(rng, n, clean, strength)
    columns["y"], shift = np.arange(n) % 10, columns["y"] - np.arange(n) % 10
    for key in [key for key in columns if key.startswith("label")]:  # every run has the same samples and labels
        columns[key] = (columns[key] - shift) % 10
    facts = {
        "model": name,
        "method": name.lower(),
        "seed": seed,
        "data": {"name": "digits", "digest": "d" * 64},
        "weights": "a" * 64,
        "versions": {"holdfast": "0.1.0", "torch": "2.13.0"},
        "commit": "c" * 40,
        "attacks": {attack: given.facts() for attack, given in ATTACKS.items()},
        "training": {"seconds": 40.0, "forwards": 90_000, "backwards": 80_000, "epochs": 6, "best_epoch": 5},
        "clean": {"seconds": 0.1, "forwards": 500, "backwards": 0},
    }
    records = Records(columns, facts, _arrays(rng, columns))
    return Run(name=name, method=name.lower(), seed=seed, records=records, metrics=_metrics(rng, strength))


def _make_study(runs: list[Run]) -> Study:
    return Study(
        name="synthetic",
        title="Three methods on digits",
        description="Synthetic records that stand for three methods with two seeds each.",
        runs=runs,
        norm="linf",
        eps=0.3,
        threat="linf perturbations of at most 0.3, pixels stay in [0, 1]",
        recipe='name = "synthetic"\n\n[data]\nname = "digits"\n',
    )


def _without(run: Run, attack: str) -> Run:
    columns = {name: values for name, values in run.records.columns.items() if not name.endswith(f":{attack}")}
    attacks = {name: given for name, given in run.records.facts["attacks"].items() if name != attack}
    return replace(run, records=Records(columns, dict(run.records.facts) | {"attacks": attacks}))


@pytest.fixture(scope="session")
def without() -> Callable[[Run, str], Run]:
    """A run as if one attack had never been run."""
    return _without


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    return _make_run


@pytest.fixture(scope="session")
def make_study() -> Callable[[list[Run]], Study]:
    return _make_study


@pytest.fixture(scope="session")
def study() -> Study:
    """Three methods, two seeds each."""
    strengths = {"Plain": (0.98, 0.05), "AT": (0.93, 0.6), "TLA": (0.94, 0.7)}
    return _make_study(
        [
            _make_run(name, seed, clean=clean, strength=strength)
            for name, (clean, strength) in strengths.items()
            for seed in (0, 1)
        ]
    )
