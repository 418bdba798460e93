"""The attacks of a recipe as measurements of a network."""

from collections.abc import Mapping
from typing import Any

import torch

from holdfast.contracts import Attack
from holdfast.evaluation.cascade import measurements_of, outputs_of
from holdfast.evaluation.measurements import Attacked, Clean
from holdfast.evaluation.subject import Subject
from holdfast.recipes.schema import curve_name
from holdfast.run.session import Evaluation, Session

Attacks = Mapping[str, tuple[Attack, Mapping[str, Any]]]
"""Attacks by name, each with the settings that are stored in records."""


def attack_evaluation(session: Session, subject: Subject, attacks: Attacks) -> Evaluation:
    """The evaluation of a network: clean prediction, the attacks of the recipe, and its accuracy-vs-eps curve."""
    config = session.recipe.evaluate
    samples = session.samples(config.samples)
    classes = outputs_of(subject, samples.batch(torch.arange(1), session.device).x)
    measurements = attack_measurements(attacks, config.curve, config.eps, config.strip, classes=classes)
    return Evaluation(subject, samples, [Clean(), *measurements], config.shard)


def attack_measurements(
    attacks: Attacks,
    curve: str | None = None,
    eps: tuple[float, ...] = (),
    strip: str | None = None,
    *,
    classes: int,
) -> list[Attacked]:
    """The attacks of a recipe, then its curve: the attack ``curve`` at every other eps, in increasing order.

    ``classes`` is the number of classes, which decides on the stages of cascades. Images of the attack ``strip`` are
    stored for the page.
    """
    measurements = [one for n, (a, s) in attacks.items() for one in measurements_of(n, a, s, classes, shown=n == strip)]
    if curve is None:
        return measurements
    attack, settings = attacks[curve]
    carry = None
    for radius in sorted({*eps, attack.threat.eps}):
        name = curve if radius == attack.threat.eps else curve_name(curve, radius)
        if name != curve:
            measurements += measurements_of(name, attack.at(radius), {**settings, "at": radius}, classes, carry=carry)
        carry = name
    return measurements
