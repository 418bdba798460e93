"""The attacks and certificates of a recipe as measurements of a network."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from holdfast.attacks.autoattack import AutoAttack
from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack
from holdfast.evaluation.cascade import measurements_of, outputs_of
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
    assert model is not None  # a network
    samples = session.samples(config.samples)
    classes = outputs_of(model, samples.batch(torch.arange(1), session.device).x)
    attacked = attack_measurements(attacks, config.curve, config.eps, config.strip, classes=classes)
    measurements: list[Measurement] = [Clean(), *attacked]
    if config.confirm is not None:
        draw = len(samples) if config.confirm == "all" else config.confirm
        measurements += confirmations(attacks, classes, draw)
    measurements += certificate_measurements(session.recipe, model)
    return Evaluation(subject, samples, measurements, config.shard)


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


def confirmations(attacks: Attacks, classes: int, draw: int) -> list[Attacked]:
    """AutoAttack on ``draw`` samples that triage leaves standing, drawn at random: a bound on what triage missed."""
    found = []
    for name, (attack, settings) in attacks.items():
        if isinstance(attack, Triage):
            suite = AutoAttack(threat=attack.threat)
            recipe = {**json_table(suite), "after": settings}
            found += measurements_of(f"autoattack after {name}", suite, recipe, classes, carry=name, draw=draw)
    return found


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
