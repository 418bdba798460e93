"""Adds a trained and evaluated model to the zoo: copies its weights and writes its card from its records.

python benchmarks/zoo.py RUN NAME [--title TITLE] [--zoo zoo]

RUN is the folder of one model, such as runs/quickstart/TLA/seed-0. Its evaluation must confirm triage by AutoAttack,
for example:

holdfast train quickstart --method TLA --seed 0
holdfast evaluate quickstart --method TLA --seed 0 --set attacks.transfer=false --set evaluate.confirm=50
"""

import argparse
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.recipes.build import build_threat
from holdfast.recipes.checks import folder_name
from holdfast.records import snapshot
from holdfast.records.files import read_json, write_bytes, write_text
from holdfast.records.records import Records
from holdfast.report.sections.cascades import confirmed
from holdfast.report.study import Run
from holdfast.statistics import Share
from holdfast.zoo import CARD, WEIGHTS, Accuracy, Card

LARGEST = 8 << 20  # bytes of the whole zoo


def main() -> int:
    """Write the card and the weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of a trained model")
    parser.add_argument("name", type=folder_name, help="its name in the zoo")
    parser.add_argument("--title", help="one sentence; by default the recipe's title and the method")
    parser.add_argument("--zoo", type=Path, default=Path(__file__).resolve().parents[1] / "zoo")
    asked = parser.parse_args()
    records = Records.load(asked.run / "records")
    weights = (asked.run / f"{records.facts['weights']['kept']}.safetensors").read_bytes()
    made = card(asked.run, records, asked.name, asked.title, sha256(weights).hexdigest())
    others = sum(file.stat().st_size for file in asked.zoo.rglob("*") if file.parent.name != asked.name)
    if others + len(weights) > LARGEST:
        raise ValueError(f"the zoo would have {(others + len(weights)) >> 20} MiB but {LARGEST >> 20} are the most")
    folder = asked.zoo / asked.name
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WEIGHTS, weights)
    write_text(folder / CARD, json.dumps(made.model_dump(mode="json"), indent=1) + "\n")
    print(made)
    return 0


def card(run: Path, records: Records, name: str, title: str | None, weights: str) -> Card:
    """The card of a model from its records; what was not judged by triage and AutoAttack is refused."""
    facts, job, threat = records.facts, read_json(run / "job.json"), records.facts["recipe"]["threat"]
    tensors = snapshot.read(run / f"{facts['weights']['kept']}.safetensors")[0]
    if snapshot.digest(tensors) != facts["weights"]["digest"]:
        raise ValueError(f"the records in {run} are of other weights; evaluate again")
    notes = list(confirmed(Run(name=facts["model"], method=facts["method"], seed=facts["seed"], records=records)))
    if not notes:
        raise ValueError(f"the records in {run} have no triage that AutoAttack confirms; evaluate with --confirm 50")
    shape, classes = sizes(facts["recipe"])
    return Card(
        name=name,
        title=title or f"{facts['recipe']['title']}: {facts['model']}",
        recipe=facts["recipe"]["name"],
        data=facts["data"]["name"],
        data_digest=facts["data"]["digest"],
        shape=shape,
        classes=classes,
        model=job["model"],
        method=job["method"],
        train=job["train"],
        seed=facts["seed"],
        commit=facts["training"]["made"][-1]["commit"],
        versions=facts["training"]["made"][-1]["versions"],
        threat=str(build_threat(threat, "threat")),
        accuracy=tuple(accuracies(records, threat)),
        notes=tuple(notes),
        weights=weights,
    )


def sizes(recipe: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """The shape of a sample and the number of classes of the data of a recipe."""
    from holdfast.recipes.assemble import load_for
    from holdfast.recipes.stored import read_recipe

    data = load_for(read_recipe(recipe, "the recipe"), None)
    return tuple(data.test.x.shape[1:]), len(data.classes or ())


def accuracies(records: Records, threat: dict[str, Any]) -> Iterator[Accuracy]:
    """Accuracy without attack, in the worst case, and under each attack on all samples at its own threat."""
    norm, eps = threat["norm"], float(threat["eps"])
    yield accuracy("clean", norm, 0.0, Share.of(records.correct))
    yield accuracy("worst case", norm, eps, Share.of(records.held(eps, norm)))
    for name, attack in records.attacks.items():
        if attack.drawn_from is None:
            share = Share.of(records.correct & ~records.fooled_within(name, attack.eps))
            yield accuracy(name, attack.norm, attack.eps, share)


def accuracy(attack: str, norm: str, eps: float, share: Share) -> Accuracy:
    """One line of the card."""
    numbers = {"share": share.value, "low": share.low, "high": share.high}
    return Accuracy(attack=attack, norm=norm, eps=eps, n=share.n, **{key: round(v, 6) for key, v in numbers.items()})


if __name__ == "__main__":
    raise SystemExit(main())
