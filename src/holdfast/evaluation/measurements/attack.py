"""The measurements of predictions: on clean samples, and under an attack, judged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.contracts import Attack, Meter, Predictor, Rows
from holdfast.data import Split
from holdfast.data.split import digest_of
from holdfast.evaluation.judge import DRAWS, abstains, attack_and_judge, drawn, randomized
from holdfast.evaluation.measurements.certificate import Certified
from holdfast.evaluation.measurements.measurement import Arrays, Before, OfItsShard, Result, Shard, cost, joined
from holdfast.evaluation.subject import Subject
from holdfast.records.facts import AttackFacts, Draws
from holdfast.records.parts import Part
from holdfast.records.records import array_name, column_name
from holdfast.rng import Rng

CLEAN = "clean"
ABSTAINED = "abstained"  # of a part and of records: samples on which the network gives no answer
RIGHT = "right"  # of a part: (n, draws) which draws of a randomized network are right
CARRIED = frozenset({"fooled", "distance", "label", "margin", RIGHT, "stage", "found"})  # what a later part may hold
PROVED = "proved"  # of a part and of records: samples that were not attacked because they are proved to hold
SHOWN = 8  # images of an attack that are stored for the page


@dataclass(frozen=True)
class Clean(OfItsShard):
    """The prediction for every clean sample; that of a randomized network also in ten further draws."""

    name = CLEAN
    after = ()
    code = ("losses", "models", "crafting", "data", "evaluation", "certify")
    settings = None
    arrays = frozenset({"index", "label", "forwards", "backwards"})
    shard = None

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """The predicted labels, and of a randomized network which draws are right."""
        batch, rng = shard.batch(subject.dtype), shard.rng.fork("clean")
        label = subject.predict(batch.x, rng)
        part = {"index": shard.samples.index.numpy(), "label": label.cpu().numpy()}
        part |= {"forwards": np.array(len(label)), "backwards": np.array(0)}
        if subject.model is not None and (rejected := abstains(subject.model, batch.x, rng)) is not None:
            part[ABSTAINED] = rejected.cpu().numpy()
        if subject.model is not None and randomized(subject.model, batch.x, rng.fork("compared")):
            part[RIGHT] = (drawn(subject.model, batch.x, rng.fork(shard.number)) == batch.y[:, None]).cpu().numpy()
            part[RIGHT] &= ~part.get(ABSTAINED, np.zeros(len(label), bool))[:, None]
            part["forwards"] = part["forwards"] * (1 + DRAWS)
        return part

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns index, y and label, and abstained of a network that may give no answer.

        The label -1 means that the outputs were not finite; such samples count as misclassified, and facts tell how
        many there are.
        """
        result.columns |= {"index": samples.index.numpy(), "y": samples.y.numpy(), "label": joined(parts, "label")}
        if ABSTAINED in parts[0]:
            result.columns[ABSTAINED] = joined(parts, ABSTAINED)
        result.facts[CLEAN] = cost(parts)
        if missing := int((result.columns["label"] == -1).sum()):
            result.facts[CLEAN]["not_finite"] = missing
        if (right := _right(parts, result.columns["label"] == result.columns["y"])) is not None:
            result.columns["accuracy"] = right.mean(1)
            result.facts[CLEAN]["draws"] = asdict(Draws.of(right))


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """One attack on every correctly classified sample, judged; on a randomized network in ten draws.

    ``carry`` names a measurement whose successes count here too, such as the same attack at a smaller eps: the samples
    it fooled are not attacked again. With ``shown`` the first adversarial images are stored. Samples that one of
    ``proofs`` proves at the eps of the attack are not attacked either: they hold, whatever the attack.
    """

    name: str
    attack: Attack
    recipe: Mapping[str, Any]
    carry: str | None = None
    shown: bool = False
    proofs: tuple[Certified, ...] = ()
    code = ("losses", "models", "crafting", "data", "attacks", "certify", "evaluation")
    arrays = frozenset({"label", "forwards", "backwards", "fooled", "distance", "margin", "outside"})
    shard = None

    @property
    def after(self) -> tuple[str, ...]:
        """The clean prediction, and the measurement whose successes carry over."""
        proofs = tuple(proof.name for proof in self.proofs)
        return (CLEAN, *proofs) if self.carry is None else (CLEAN, self.carry, *proofs)

    @property
    def settings(self) -> Any:
        """The attack as a recipe writes it, its threat, and the measurement it continues."""
        return [self.name, self.recipe, str(self.attack.threat), self.carry, self.shown]

    def depends_on(self, shard: Shard, before: Before) -> Any:
        """A digest of what carries over, which may come from a ranking over all shards or carry over itself, and the
        samples that are proved."""
        proved = [self.proved(shard, before).nonzero()[0].tolist()] if self.proofs else []
        if self.carry is None:
            return proved or None
        part = before[self.carry][shard.number]
        carried = digest_of(*(torch.from_numpy(part[name]) for name in sorted(part.keys() & CARRIED)))
        return [carried, *proved] if proved else carried

    def proved(self, shard: Shard, before: Before) -> NDArray[np.bool_]:
        """Mask of the samples that a certificate proves at the eps of the attack; none of a randomized network."""
        clean, found = before[CLEAN], np.zeros(len(shard.samples), bool)
        first = sum(len(part["label"]) for part in clean[: shard.number])
        rows = slice(first, first + len(found))  # certificates may be divided into other shards
        if clean[shard.number].keys() & {RIGHT, ABSTAINED}:
            return found
        for proof in self.proofs:
            label, radius = (joined(before[proof.name], name)[rows] for name in ("label", "radius"))
            reached = radius >= self.attack.threat.eps if proof.closed else radius > self.attack.threat.eps
            found |= reached & (label == clean[shard.number]["label"])
        return found

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Attack the samples that are still classified correctly."""
        part = self.carried(shard, before)
        proved = ~part["fooled"] & self.proved(shard, before)
        return self.attacked(subject, shard, part, ~part["fooled"] & ~proved, shard.rng) | self.recorded(proved)

    def recorded(self, proved: NDArray[np.bool_]) -> Arrays:
        """What a part says of proofs, if there are any."""
        return {PROVED: proved} if self.proofs else {}

    def carried(self, shard: Shard, before: Before) -> Arrays:
        """The columns before the attack: misclassified samples, and those without an answer, count as fooled at
        distance 0; successes carry over."""
        clean, y = before[CLEAN][shard.number], shard.samples.y.numpy()
        columns = {
            "fooled": (clean["label"] != y) | clean.get(ABSTAINED, False),
            "distance": np.zeros(len(y)),
            "label": clean["label"].copy(),
            "margin": np.full(len(y), -np.inf),
        }
        if RIGHT in clean:
            columns[RIGHT] = clean[RIGHT].copy()
        if self.carry is not None:
            earlier = before[self.carry][shard.number]
            for name, column in columns.items():
                column[earlier["fooled"]] = earlier[name][earlier["fooled"]]
            columns["margin"] = earlier["margin"].copy()
        return columns

    def attacked(self, subject: Subject, shard: Shard, part: Arrays, which: NDArray[np.bool_], rng: Rng) -> Arrays:
        """The part with the chosen samples attacked."""
        batch, meter, todo = shard.batch(subject.dtype), Meter(), torch.from_numpy(which).to(shard.device)
        x, rows = batch.x[todo], Rows(batch.y[todo], batch.index[todo])
        draws, judge_rng = 1, rng.fork("judge")
        if RIGHT in part:  # a fork, because a model's random numbers follow positions, which shards repeat
            draws, judge_rng = part[RIGHT].shape[1], judge_rng.fork(shard.number)
        x_adv, verdict = attack_and_judge(
            _target(subject, self, rng.fork("predict")),
            self.attack,
            x,
            rows,
            rng=rng,
            judge_rng=judge_rng,
            watch=meter,
            draws=draws,
        )
        part["margin"][which] = np.maximum(part["margin"][which], verdict.margin.cpu().numpy())
        for name in part.keys() - {"margin"}:
            part[name][which] = getattr(verdict, name).cpu().numpy()
        part["outside"] = np.array(int((~verdict.inside).sum()))
        part["forwards"], part["backwards"] = np.array(meter.cost.forwards), np.array(meter.cost.backwards)
        if self.shown and shard.number == 0:
            images = batch.x.clone()
            images[todo] = x_adv
            part["images"] = images[:SHOWN].cpu().numpy()
        return part

    @property
    def title(self) -> str:
        """The name of the attack in records."""
        return self.name

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns fooled, distance and label of the attack, its facts, and its images if they were stored; also
        the column proved if certificates spare samples the attack.

        Of a randomized network also the column accuracy, the share of draws that classify the sample correctly.
        """
        threat = self.attack.threat
        for kind in ("fooled", "distance", "label"):
            result.columns[column_name(kind, threat.norm.name, self.title)] = joined(parts, kind)
        right = _right(parts, ~joined(parts, "fooled"))
        if right is not None:
            result.columns[column_name("accuracy", threat.norm.name, self.title)] = right.mean(1)
        if self.proofs:
            result.columns[column_name(PROVED, threat.norm.name, self.title)] = joined(parts, PROVED)
        facts = AttackFacts(
            norm=threat.norm.name,
            eps=threat.eps,
            minimal=self.attack.minimal,
            outside=sum(int(part["outside"]) for part in parts),
            settings=self.recipe,
            draws=None if right is None else Draws.of(right),
            **cost(parts),
        )
        result.facts.setdefault("attacks", {})[self.title] = facts.facts()
        result.arrays |= dict(self._images(parts[0], samples))

    def _images(self, part: Part, samples: Split) -> Iterator[tuple[str, NDArray[Any]]]:
        if "images" in part and part["images"].ndim == 4:
            shown = torch.arange(len(part["images"]))
            yield "shown", samples.index[shown].numpy()
            yield "clean", samples.batch(shown).x.numpy()
            yield array_name(self.attack.threat.norm.name, self.name), part["images"]


def _target(subject: Subject, measurement: Attacked, rng: Rng) -> Predictor:
    """The module of a subject, or its predictions where it has none, which suffice for black-box attacks."""
    if subject.model is not None:
        return subject.model
    if not measurement.attack.black_box:
        raise ValueError(
            f"{subject.name} has no network, so {measurement.name} finds no gradients there; leave it out or use "
            "attacks that need only predictions, such as rays and hopskipjump"
        )
    return subject.scores or (lambda x: subject.predict(x, rng))


def _right(parts: Sequence[Part], otherwise: NDArray[Any]) -> NDArray[Any] | None:
    """(n, draws) which draws are right, None if no shard found the network randomized; ``otherwise`` (n,) for shards
    that did not."""
    widths = [part[RIGHT].shape[1] for part in parts if RIGHT in part]
    if not widths:
        return None
    pieces = np.split(otherwise, np.cumsum([len(part["label"]) for part in parts])[:-1])
    repeated = (np.repeat(piece[:, None], widths[0], 1) for piece in pieces)
    return np.concatenate([part.get(RIGHT, piece) for part, piece in zip(parts, repeated, strict=True)])
