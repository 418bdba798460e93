"""The attacks and certificates of a recipe as measurements of a network."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from holdfast.contracts import Attack
from holdfast.evaluation.measurements import Attacked, Certified, Clean, Measurement
from holdfast.evaluation.subject import Subject
from holdfast.recipes.build import json_table
from holdfast.recipes.certify import bind, certifier_table
from holdfast.recipes.schema import Recipe, curve_name
from holdfast.run.session import Evaluation, Session

Attacks = Mapping[str, tuple[Attack, Mapping[str, Any]]]
"""Attacks by name, each with the settings that are stored in records."""


def network_evaluation(session: Session, subject: Subject, attacks: Attacks) -> Evaluation:
    """The evaluation of a network: clean prediction, attacks, accuracy-vs-eps curve and certificates of the recipe."""
    config, model = session.recipe.evaluate, subject.model
    measurements: list[Measurement] = [Clean(), *attack_measurements(attacks, config.curve, config.eps, config.strip)]
    measurements += [] if model is None else certificate_measurements(session.recipe, model)
    return Evaluation(subject, session.samples(config.samples), measurements, config.shard)


def certificate_measurements(recipe: Recipe, model: nn.Module) -> list[Certified]:
    """The certificates of a recipe; a certifier that cannot handle the network refuses it here, before any work."""
    found = []
    for name, certifier in recipe.certificates.items():
        try:
            bound = bind(certifier, model)
        except ValueError as error:
            raise ValueError(f"certificates.{name}: {error}") from error
        shard = None if recipe.certify is None else recipe.certify.shard
        found.append(Certified(name=name, certifier=bound, recipe=json_table(certifier_table(certifier)), shard=shard))
    return found


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
