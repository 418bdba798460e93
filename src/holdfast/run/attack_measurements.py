"""The attacks of a recipe as measurements of a network."""

from collections.abc import Mapping
from typing import Any

from holdfast.contracts import Attack
from holdfast.evaluation.measurements import Attacked, Clean, Measurement
from holdfast.evaluation.subject import Subject
from holdfast.recipes.schema import curve_name
from holdfast.run.session import Evaluation, Session

Attacks = Mapping[str, tuple[Attack, Mapping[str, Any]]]
"""Attacks by name, each with the settings that are stored in records."""


def attack_evaluation(session: Session, subject: Subject, attacks: Attacks) -> Evaluation:
    """The evaluation of a network: clean prediction, the attacks of the recipe, and its accuracy-vs-eps curve."""
    config = session.recipe.evaluate
    measurements: list[Measurement] = [Clean(), *attack_measurements(attacks, config.curve, config.eps, config.strip)]
    return Evaluation(subject, session.samples(config.samples), measurements, config.shard)


def attack_measurements(
    attacks: Attacks, curve: str | None = None, eps: tuple[float, ...] = (), strip: str | None = None
) -> list[Attacked]:
    """The attacks of a recipe, then its curve: the attack ``curve`` at every other eps, in increasing order.

    Images of the attack ``strip`` are stored for the page.
    """
    measurements = [Attacked(name=n, attack=a, recipe=s, shown=n == strip) for n, (a, s) in attacks.items()]
    if curve is None:
        return measurements
    attack, settings = attacks[curve]
    easier = None
    for radius in sorted({*eps, attack.threat.eps}):
        name = curve if radius == attack.threat.eps else curve_name(curve, radius)
        if name != curve:
            measurements.append(
                Attacked(name=name, attack=attack.at(radius), recipe={**settings, "at": radius}, easier=easier)
            )
        easier = name
    return measurements
