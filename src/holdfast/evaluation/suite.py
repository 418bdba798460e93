"""What is measured of a classifier: its attacks, the accuracy-vs-eps curve, and the check of triage by AutoAttack."""

from collections.abc import Mapping
from typing import Any

from holdfast.attacks.autoattack import AutoAttack
from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack
from holdfast.evaluation.measurements.attack import Attacked, Clean
from holdfast.evaluation.measurements.cascade import measurements_of
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import EvaluateConfig
from holdfast.recipes.tables.attack import curve_name

Attacks = Mapping[str, tuple[Attack, Mapping[str, Any]]]
"""Attacks by name, each with the settings that are stored in records."""


def measurements(attacks: Attacks, config: EvaluateConfig, samples: int, classes: int) -> list[Measurement]:
    """The clean prediction of ``samples`` samples, the attacks, their curve, and the check of triage if asked for."""
    attacked = attack_measurements(attacks, config.curve, config.eps, config.strip, classes=classes)
    if config.confirm is not None:
        attacked += confirmations(attacks, classes, samples if config.confirm == "all" else config.confirm)
    return [Clean(), *attacked]


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
