"""The attacks of a recipe as measurements of a network."""

from collections.abc import Mapping
from typing import Any

from holdfast.contracts import Attack
from holdfast.evaluation.measurements import Attacked, Clean, Measurement
from holdfast.evaluation.subject import Subject
from holdfast.recipes.schema import curve_name
from holdfast.run.session import Evaluation, Session

Attacks = Mapping[str, tuple[Attack, Mapping[str, Any]]]
"""Attacks by name, each with the settings that go into records."""


def under_attack(session: Session, subject: Subject, attacks: Attacks) -> Evaluation:
    """The evaluation of a network: its clean prediction, the attacks of the recipe and its curve."""
    config = session.recipe.evaluate
    measurements: list[Measurement] = [Clean(), *attacked(attacks, config.curve, config.eps, config.strip)]
    return Evaluation(subject, session.samples(config.samples), measurements, config.shard)


def attacked(
    attacks: Attacks, curve: str | None = None, eps: tuple[float, ...] = (), strip: str | None = None
) -> list[Attacked]:
    """The attacks of a recipe, then its curve: the attack ``curve`` at every other eps, in growing order.

    Images of the attack ``strip`` are kept for the page.
    """
    found = [Attacked(name=n, attack=a, recipe=s, shown=n == strip) for n, (a, s) in attacks.items()]
    if curve is None:
        return found
    attack, settings = attacks[curve]
    easier = None
    for radius in sorted({*eps, attack.threat.eps}):
        name = curve if radius == attack.threat.eps else curve_name(curve, radius)
        if name != curve:
            found.append(
                Attacked(name=name, attack=attack.at(radius), recipe={**settings, "at": radius}, easier=easier)
            )
        easier = name
    return found
