"""What the tables of a recipe say about each other: names of attacks and methods, and what must go together."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.contracts import Attack, Cascade
from holdfast.members import unknown
from holdfast.recipes import checks
from holdfast.recipes.tables.attack import TransferConfig, curve_name
from holdfast.recipes.tables.certify import check_certificates

if TYPE_CHECKING:
    from holdfast.recipes.schema import Entry, Recipe


def check_references(recipe: "Recipe") -> None:
    """Refuse names in a recipe of attacks and methods that it does not have, and what does not go together."""
    evaluate = recipe.evaluate
    for key, name in (("curve", evaluate.curve), ("strip", evaluate.strip)):
        if name is not None and name not in recipe.attacks:
            raise ValueError(unknown(f"attack {name!r} in evaluate.{key}", name, recipe.attacks))
    if evaluate.strip is not None and isinstance(recipe.attacks[evaluate.strip], Cascade):
        raise ValueError(
            f"evaluate.strip is {evaluate.strip!r}, a cascade, whose images are not stored; name another attack"
        )
    if evaluate.curve is not None:
        _check_curve(evaluate.curve, evaluate.eps, recipe.attacks)
    for name, entry in recipe.methods.items():
        _check_start(name, entry.train.init_from, recipe.methods)
    for name, attack in recipe.attacks.items():
        if isinstance(attack, TransferConfig):
            _check_sources(name, attack, recipe.methods)
    if evaluate.skip_certified and not recipe.certificates:
        raise ValueError("evaluate.skip_certified needs certificates of networks; add [certificates] or leave it out")
    if recipe.certify is not None and recipe.certificates:
        curve = [] if evaluate.curve is None else [curve_name(evaluate.curve, eps) for eps in evaluate.eps]
        check_certificates(recipe.certificates, recipe.certify, evaluate.samples, ["clean", *recipe.attacks, *curve])
    checks.different_rows(recipe.methods, recipe.models, recipe.metrics)


def without_transfer(recipe: "Recipe") -> "Recipe":
    """The recipe without attacks that craft on another model of the study, if not every model has such a one."""
    if recipe.models:
        reason = "which the networks of [models] do not have"
    elif len(recipe.seeds) < 2:
        reason = f"but the recipe has only seed {recipe.seeds[0]}"
    else:
        return recipe
    dropped = [name for name, attack in recipe.attacks.items() if isinstance(attack, TransferConfig)]
    for key, name in (("curve", recipe.evaluate.curve), ("strip", recipe.evaluate.strip)):
        if name in dropped:
            raise ValueError(f"evaluate.{key} is {name!r}, which crafts on a model of another seed, {reason}")
    notes = tuple(f"{name} is left out: it crafts on a model trained with another seed, {reason}." for name in dropped)
    return replace(recipe, attacks={n: a for n, a in recipe.attacks.items() if n not in dropped}, notes=notes)


def _check_sources(name: str, attack: TransferConfig, methods: Collection[str]) -> None:
    for method in attack.sources:
        if method not in (*methods, "self"):
            raise ValueError(unknown(f"source {method!r} in attacks.{name}", method, methods))


def _check_curve(curve: str, radii: Sequence[float], attacks: Mapping[str, Attack | TransferConfig]) -> None:
    """Refuse, before training, radii that the attack does not accept and two attacks of one name."""
    chosen = attacks[curve]
    attack = chosen.attack if isinstance(chosen, TransferConfig) else chosen
    taken = list(attacks)
    for eps in dict.fromkeys(radii):
        try:
            attack.at(eps)
        except ValueError as error:
            raise ValueError(f"evaluate.eps: {error}") from None
        if eps != attack.threat.eps:
            taken.append(curve_name(curve, eps))
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice:
        raise ValueError(f"two attacks would be called {twice!r}, one of them on the curve; rename one or drop an eps")


def _check_start(name: str, start: str | None, methods: Mapping[str, "Entry"]) -> None:
    seen = [name]
    while start is not None and start in methods:
        if start in seen:
            raise ValueError(f"methods.{name}.train.init_from leads back to {start!r}, so neither could start")
        seen.append(start)
        start = methods[start].train.init_from
    if start is not None and not start.endswith(".safetensors"):
        where = f"init_from {start!r} in methods.{seen[-1]}.train"
        raise ValueError(unknown(where, start, methods) + ", or the path of a .safetensors file")
