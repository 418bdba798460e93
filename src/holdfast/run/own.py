"""Evaluate a user's own model on a user's own data: the same trials, records, table and page as a recipe's."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.contracts import Attack
from holdfast.crafting.view import described
from holdfast.data import EvaluationSet, load_test
from holdfast.evaluation.evaluate import Subject, evaluate, trials
from holdfast.evaluation.imported import Own, build, identity, importable, look
from holdfast.geometry import Threat
from holdfast.models.classifier import Normalize
from holdfast.recipes import source, toml
from holdfast.recipes.build import build_attack, build_threat, json_table, scalar, table_of
from holdfast.recipes.schema import EvaluatePlan, completed
from holdfast.records.atomic import write_text
from holdfast.records.records import Records
from holdfast.records.stored import read_json
from holdfast.report.page import write_page
from holdfast.report.sections import study_page
from holdfast.report.study import Run, Study
from holdfast.run.study import Progress, commit, open_fabric, versions

ATTACKS = ("noise", "fgsm", "pgd:steps=40,restarts=5", "pgd:steps=40,restarts=5,loss=logit_difference")
"""What a model is attacked with unless attacks are named: these work in every norm."""

_BETWEEN = re.compile(r",(?![^\[{]*[\]}])")  # a comma that is not inside of a list or a table


@dataclass(frozen=True, kw_only=True)
class OwnPlan:
    """What the command line asks for: a model, its weights and normalization, the data, the threat, the attacks."""

    model: str
    weights: Path | None
    data: str
    size: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    threat: Threat
    attacks: Mapping[str, Attack]
    evaluate: EvaluatePlan

    @property
    def name(self) -> str:
        """What results are called: the model and the file of its weights, as far as folders can be called so."""
        words = self.model if self.weights is None else f"{self.model}-{self.weights.stem}"
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", words).strip(".-") or "own"

    def table(self) -> dict[str, Any]:
        """The plan as the records and the page show it, every default written out."""
        weights = None if self.weights is None else str(self.weights)
        return {
            "model": {"name": self.model, "weights": weights, "mean": self.mean or None, "std": self.std or None},
            "data": {"name": self.data, "size": self.size},
            "threat": table_of(self.threat),
            "attacks": table_of(self.attacks),
            "evaluate": table_of(self.evaluate),
        }


def read(
    model: str,
    *,
    data: str | None,
    threat: str | None,
    weights: Path | None = None,
    size: str | None = None,
    mean: str | None = None,
    std: str | None = None,
    attack: Sequence[str] = (),
    samples: int | None = None,
    seed: int | None = None,
) -> OwnPlan:
    """A plan from what was written on the command line."""
    for option, value, example in (("--data", data, "imagefolder:PATH"), ("--threat", threat, "linf:8/255")):
        if not value:
            raise ValueError(f"--model needs {option} too, e.g. {option} {example}")
    if (samples is not None and samples < 1) or (seed is not None and seed < 0):
        raise ValueError(
            f"--samples is {samples} and --seed {seed} but there must be a sample, and a seed is 0 or more"
        )
    allowed = build_threat(threat, "--threat")
    chosen = _attacks(attack or ATTACKS, allowed)
    return OwnPlan(
        model=model,
        weights=weights,
        data=str(data),
        size=_size(size),
        **_normalization(mean, std),
        threat=allowed,
        attacks=chosen,
        evaluate=EvaluatePlan(samples=samples, seed=seed or 0, strip=list(chosen)[-1]),
    )


def _attacks(given: Sequence[str], threat: Threat) -> dict[str, Attack]:
    found: dict[str, Attack] = {}
    for text in given:
        name, where = "".join(text.split()), f"--attack {text}"
        if name in found:
            raise ValueError(f"{where} is given twice; give attacks that differ")
        found[name] = build_attack(completed(_attack_table(text, where), where), where, threat)
    return found


def _attack_table(text: str, where: str) -> dict[str, Any]:
    """The recipe's table of an attack written as name:key=value,key=value."""
    name, _, rest = text.partition(":")
    table: dict[str, Any] = {"name": name.strip()}
    if table["name"] == "transfer":
        raise ValueError(f"{where} crafts on another model of a recipe, and here there is none; leave it out")
    for part in _BETWEEN.split(rest) if rest.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in table:
            raise ValueError(
                f"{where} has {part.strip()!r} where a new key=value is needed, e.g. pgd:steps=40,step=1/255"
            )
        table[key] = source.value(value)
    return table


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = [int(part) if part.isdecimal() else 0 for part in text.split(":")]
    if len(parts) > 2 or not 1 <= parts[-1] <= parts[0] < 1 << 15:
        raise ValueError(f"--size is {text!r} but must be a number of pixels, or two as in 256:224, the second smaller")
    return parts[0], parts[-1]


def _normalization(mean: str | None, std: str | None) -> dict[str, tuple[float, ...]]:
    given = {"mean": mean or "", "std": std or ""}
    found = {
        key: scalar(tuple[float, ...], [part.strip() for part in text.split(",") if text], f"--{key}")
        for key, text in given.items()
    }
    numbers = (*found["mean"], *found["std"])
    if len(found["mean"]) != len(found["std"]) or not all(map(isfinite, numbers)) or min(found["std"], default=1) <= 0:
        raise ValueError(f"--mean is {mean!r} and --std {std!r} but both need one number per channel, std above 0")
    return found


def evaluate_own(
    plan: OwnPlan, out: Path, data_dir: Path | None, device: str, progress: Progress
) -> tuple[Records, Path]:
    """Records of the model under the attacks, and the page; attacks and samples already done are not repeated."""
    fabric = open_fabric(device)
    data = load_test(plan.data, data_dir, samples=plan.evaluate.samples, size=plan.size)
    with importable(os.getcwd()):  # to the end: a forward pass may import too
        model = fabric.to_device(Own(build(plan.model, plan.weights, data, plan.evaluate.seed), _normalize(plan, data)))
        look(model, data, fabric.device)
        subject = _subject(plan, out, data, model.eval())
        attacks = {name: (attack, json_table(attack)) for name, attack in plan.attacks.items()}
        records = evaluate(
            subject,
            data.test,
            trials(attacks, strip=plan.evaluate.strip),
            seed=plan.evaluate.seed,
            shard=plan.evaluate.shard,
            device=fabric.device,
            tick=lambda done, total, said: progress(f"attack {plan.model}", done, total, said),
        )
    page = out / "report.html"
    write_page(page, study_page(study_of(plan, records)))
    return records, page


def _normalize(plan: OwnPlan, data: EvaluationSet) -> nn.Module | None:
    shape = tuple(data.test.x.shape[1:])
    if not plan.mean:
        return None
    if len(shape) != 3 or len(plan.mean) not in (1, shape[0]):
        raise ValueError(
            f"--mean has {len(plan.mean)} numbers but samples have shape {shape}; give one number for each channel "
            "of images, or one for all"
        )
    return Normalize(plan.mean, plan.std)


def _subject(plan: OwnPlan, out: Path, data: EvaluationSet, model: nn.Module) -> Subject:
    known = identity(plan.model, model)
    _claim(out, known)
    facts = {
        "model": plan.model,
        "method": "own",
        "seed": plan.evaluate.seed,
        "data": {"name": data.name, "digest": data.digest},
        "weights": {"kept": None if plan.weights is None else plan.weights.name, "digest": known["weights"]},
        "identity": known,
        "recipe": json_table(plan.table()),
        "crafting": described(model),
        "versions": versions(),
        "commit": commit(),
    }
    digest = sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return Subject(model=model, digest=digest, folder=out, facts=facts)


def _claim(out: Path, known: Mapping[str, str]) -> None:
    """Make the folder the model's own; one that holds results of another model or of a recipe is refused."""
    path = out / "model.json"
    if path.is_file():
        found = read_json(path)
        differs = [key for key in known if found.get(key) != known[key]]
        if differs:
            other = " and ".join(differs)
            raise ValueError(f"{out} holds results of another model (other {other}); choose another --out or remove it")
    elif out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise ValueError(f"{out} holds something else than results of --model; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(known, indent=1) + "\n")


def study_of(plan: OwnPlan, records: Records) -> Study:
    """The one model as a study, for the table and the page."""
    facts = records.facts
    return Study(
        name=plan.name,
        title=f"{plan.model} under attack",
        description=f"{facts['data']['name']}; weights: {facts['weights']['kept'] or 'as built'}.",
        runs=[Run(name=plan.model, method="own", seed=plan.evaluate.seed, records=records)],
        norm=plan.threat.norm.name,
        eps=plan.threat.eps,
        threat=str(plan.threat),
        recipe=toml.dumps(plan.table()),
    )
