"""Cascades of attacks: every stage is a measurement, run on samples that are ranked over all shards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.attacks._cascade import select
from holdfast.contracts import Attack, Cascade, Stage
from holdfast.crafting.view import frozen
from holdfast.data import Split
from holdfast.evaluation.measurements.attack import CLEAN, Attacked
from holdfast.evaluation.measurements.measurement import Before, Result, Shard, cost, joined
from holdfast.evaluation.subject import Subject
from holdfast.records.parts import Part
from holdfast.records.records import column_name
from holdfast.rng import Rng


@torch.no_grad()
def outputs_of(model: nn.Module, x: Tensor) -> int:
    """The number of logits of a network, which decides on the stages of cascades."""
    with frozen(model, Rng(0)) as view:
        return view(x).shape[1]


def measurements_of(
    name: str,
    attack: Attack,
    recipe: Mapping[str, Any],
    classes: int,
    *,
    carry: str | None = None,
    shown: bool = False,
    draw: int | None = None,
) -> list[Attacked]:
    """An attack as measurements: one, or one for each stage of a cascade, of which the last has the name.

    With ``draw`` a cascade is run on that many samples alone, drawn at random among those that the measurement
    ``carry`` did not fool.
    """
    if isinstance(attack, Cascade):
        return list(_staged(name, attack, recipe, classes, carry, draw))
    return [Attacked(name=name, attack=attack, recipe=recipe, carry=carry, shown=shown)]


def _staged(
    name: str, cascade: Cascade, recipe: Mapping[str, Any], classes: int, carry: str | None, draw: int | None
) -> Iterator["Staged"]:
    stages, drawn_from = cascade.stages(classes), None if draw is None else carry
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        yield Staged(
            name=name if last else f"{name}, {stage.name}",
            attack=stage.attack,
            recipe=recipe,
            carry=carry,
            cascade=name,
            stage=stage,
            number=number,
            drawn_from=drawn_from,
            draw=draw,
        )
        carry = f"{name}, {stage.name}"


@dataclass(frozen=True, kw_only=True)
class Staged(Attacked):
    """A stage of the cascade ``cascade``: its attack on the samples that the stage selects among those of all shards.

    The columns are those of the cascade, with one more that says which stage fooled a sample. With ``draw`` the stages
    are run on that many samples alone, drawn at random among those that the measurement ``drawn_from`` did not fool.
    """

    cascade: str
    stage: Stage
    number: int
    drawn_from: str | None = None
    draw: int | None = None

    @property
    def after(self) -> tuple[str, ...]:
        """The measurements that an attack comes after, and the one among whose samples some are drawn."""
        return super().after if self.drawn_from is None else (*super().after, self.drawn_from)

    @property
    def settings(self) -> Any:
        """The settings of an attack, and how the stage selects samples."""
        stage = self.stage
        return [*super().settings, stage.name, self.number, stage.share, stage.if_fooled, self.draw]

    def depends_on(self, shard: Shard, before: Before) -> Any:
        """What carries over, the selected samples of this shard by position, and whether any shard has some."""
        carried = super().depends_on(shard, before)
        if self._runs_on_all:
            return carried
        selected = self._selected(shard, before)
        return [carried, selected[shard.number].nonzero()[0].tolist(), any(map(np.any, selected))]

    @property
    def _runs_on_all(self) -> bool:
        return self.number == 0 and self.draw is None

    def measure(self, subject: Subject, shard: Shard, before: Before) -> Part:
        """Attack all correctly classified samples in the first stage, and those that are selected in later ones."""
        part = self.carried(shard, before)
        selected = [~part["fooled"]] if self._runs_on_all else self._selected(shard, before)
        proved = ~part["fooled"] & self.proved(shard, before)
        which = selected[0 if self._runs_on_all else shard.number] & ~proved
        part = self.attacked(subject, shard, part, which, shard.rng.fork(self.stage.name))
        new = which & part["fooled"]
        last = {"found": np.array(new.sum()), "tried": np.array(which.sum())}  # of the last stage that was run
        if self.number > 0 and not any(map(np.any, selected)):
            last = {name: self._earlier(shard, before, name, np.array(0)) for name in last}
        return part | {
            "stage": np.where(new, self.number, self._earlier(shard, before, "stage", np.full(len(which), -1))),
            **last,
            "attacked": np.array(which.sum()),
            **self.recorded(proved),
        }

    @property
    def title(self) -> str:
        """The name of the cascade."""
        return self.cascade

    def collect(self, parts: Sequence[Part], samples: Split, result: Result) -> None:
        """The columns and facts of the cascade up to this stage, and the samples, successes and cost of each stage."""
        attacks, norm = result.facts.setdefault("attacks", {}), self.attack.threat.norm.name
        earlier = attacks[self.cascade]["stages"] if self.number else []
        super().collect(parts, samples, result)
        stage = joined(parts, "stage")
        result.columns[column_name("stage", norm, self.cascade)] = stage
        attacked = sum(int(part["attacked"]) for part in parts)
        here = {"name": self.stage.name, "attacked": attacked, "fooled": int((stage == self.number).sum())}
        stages = [*earlier, here | {"outside": attacks[self.cascade]["outside"]} | cost(parts)]
        sums = {name: sum(one[name] for one in stages) for name in ("seconds", "forwards", "backwards", "outside")}
        attacks[self.cascade] |= {"stages": stages, "drawn_from": self.drawn_from} | sums

    def _earlier(self, shard: Shard, before: Before, name: str, first: NDArray[Any]) -> NDArray[Any]:
        return first if self.number == 0 or self.carry is None else before[self.carry][shard.number][name]

    def _selected(self, shard: Shard, before: Before) -> list[NDArray[np.bool_]]:
        """The masks of all shards: samples are ranked over all of them."""
        assert self.carry is not None  # the stage before
        parts = before[self.carry]
        standing, margin = ~torch.from_numpy(joined(parts, "fooled")), torch.from_numpy(joined(parts, "margin"))
        if self.draw is not None:
            standing &= self._drawn(shard, before)
        mask = select(self.stage, standing, margin, self._fooled(parts))
        return [part.numpy() for part in torch.split(mask, [len(part["fooled"]) for part in parts])]

    def _fooled(self, parts: Sequence[Part]) -> float:
        """The share of its samples that the last stage fooled."""
        if self.number == 0:
            return 0.0
        return sum(int(part["found"]) for part in parts) / max(1, sum(int(part["tried"]) for part in parts))

    def _drawn(self, shard: Shard, before: Before) -> Tensor:
        """(n,) mask of the samples that are drawn; random numbers are keyed by sample, so all shards agree."""
        assert self.drawn_from is not None
        standing = ~torch.from_numpy(joined(before[self.drawn_from], "fooled"))
        index = torch.from_numpy(joined(before[CLEAN], "index"))
        chance = shard.rng.fork("drawn").at(index).uniform(torch.empty(len(index), dtype=torch.float64))
        order = chance.where(standing, torch.inf).argsort()
        drawn = torch.zeros_like(standing)
        drawn[order[: self.draw]] = True
        return drawn & standing
