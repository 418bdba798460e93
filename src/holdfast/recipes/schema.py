"""A recipe: everything a study needs, as TOML validated into frozen dataclasses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, cast

from torch import nn

from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack, Method
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.geometry import Threat
from holdfast.members import unknown
from holdfast.recipes import checks, kinds, source
from holdfast.recipes.build import (
    Table,
    build,
    build_attack,
    build_method,
    build_threat,
    member,
    scalar,
    section,
    table_of,
)
from holdfast.recipes.model import ModelPlan as ModelPlan
from holdfast.recipes.model import read_model
from holdfast.recipes.space import SweepPlan
from holdfast.recipes.train import OptimizerPlan as OptimizerPlan
from holdfast.recipes.train import SchedulePlan as SchedulePlan
from holdfast.recipes.train import TrainPlan as TrainPlan


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """Which data set, and the share (or number) of train samples kept for validation."""

    name: str
    valid: float | int = 0.1
    seed: int = 0  # decides who is in validation; the same for every model of the study
    verify: bool = True  # refuse files whose checksum is not the published one


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a study: a method, how it is trained, and its model where that is not the recipe's."""

    method: Method
    train: TrainPlan
    model: ModelPlan | None = None


@dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """An attack crafted on another model of the study; ``"self"`` is the same method trained with another seed."""

    attack: Attack
    source: str = "self"

    def __post_init__(self) -> None:
        Transfer(
            source=nn.Identity(), attack=self.attack
        )  # refuses what it cannot use, here rather than after training


@dataclass(frozen=True, kw_only=True)
class EvaluatePlan:
    """What the evaluation does: how many test samples (None: all), and where the accuracy-vs-eps curve is measured."""

    samples: int | None = None
    weights: Literal["best", "last"] = "best"
    seed: int = 0
    shard: int = 1000  # samples between two saved parts
    curve: str | None = None  # the attack that measures the curve
    eps: tuple[float, ...] = ()
    strip: str | None = None  # the attack whose images are shown

    def __post_init__(self) -> None:
        if self.shard < 1 or (self.samples is not None and self.samples < 1):
            raise ValueError(f"shard is {self.shard} and samples {self.samples} but both must be at least 1")
        if not all(0 <= eps < inf for eps in self.eps):
            raise ValueError(f"eps is {list(self.eps)} but the curve is measured at finite radii of zero or more")
        if self.eps and self.curve is None:
            raise ValueError('eps is given but no curve; name the attack that measures it, e.g. curve = "PGD-40"')


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A study: one data set, one architecture, one threat, several methods and seeds, the attacks that judge them."""

    name: str
    title: str
    description: str
    seeds: tuple[int, ...]
    data: DataPlan
    model: ModelPlan
    threat: Threat
    methods: Mapping[str, Entry]
    validate: Attack
    attacks: Mapping[str, Attack | TransferPlan]
    evaluate: EvaluatePlan
    threads: int | None = None  # cores torch may use; small models are faster on one
    arithmetic: Arithmetic = "auto"  # the numbers attacks compute with; judging is always float32
    sweep: SweepPlan | None = None  # what `holdfast sweep` tries, where the recipe says so
    awaited: Mapping[str, Table] = field(default_factory=dict)  # attacks not written yet: they can be shown, not run

    def model_of(self, method: str) -> ModelPlan:
        """The model that a method trains."""
        return self.methods[method].model or self.model

    def table(self) -> dict[str, Any]:
        """The resolved recipe, every default written out; :func:`read` takes it back."""
        table = cast(dict[str, Any], table_of(self))
        for entry in table["methods"].values():
            method = entry.pop("method")
            entry.update(method)
        for name, attack in self.attacks.items():
            if isinstance(attack, TransferPlan):
                table["attacks"][name] = {"name": "transfer", **table["attacks"][name]}
        table["attacks"].update(table.pop("awaited"))
        return table


def curve_name(attack: str, eps: float) -> str:
    """What an attack is called where it measures the curve at another eps than its own."""
    return f"{attack}@{eps:g}"


def names() -> list[str]:
    """The recipes that come with holdfast."""
    return [name for name in source.names() if "certify" not in source.table(name)]


def load(name: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or the path of a .toml file, with ``key=value`` changes applied."""
    return read(source.changed(name, changes), name)


def read(table: Table, where: str = "recipe") -> Recipe:
    """A recipe from its table."""
    if "certify" in table:
        raise ValueError(f"{where} is a recipe for certificates; use `holdfast certify {where}`")
    known = {"name", "title", "description", "seeds", "data", "model", "threat", "train", "craft"}
    known |= {"methods", "validate", "attacks", "evaluate", "threads", "arithmetic", "sweep"}
    for key in table:
        if key not in known:
            raise ValueError(unknown(f"key {key!r} in {where}", key, known))
    for key in ("data", "model", "threat", "methods", "attacks"):
        if key not in table:
            raise ValueError(f"{where} needs a [{key}] section")
    threat = build_threat(table["threat"], "threat")
    given = {name: _attacking(name, value) for name, value in checks.named(table["attacks"], "attacks").items()}
    awaited = {name: attack for name, attack in given.items() if kinds.awaited(str(attack["name"]))}
    for name, attack in awaited.items():
        build_threat(attack.get("threat", table["threat"]), f"attacks.{name}.threat")  # all that can be checked of it
    name = checks.folder_name(str(table.get("name", where)))
    recipe = Recipe(
        name=name,
        title=str(table.get("title", name)),
        description=str(table.get("description", "")),
        seeds=checks.seeds(table.get("seeds", [0])),
        data=build(DataPlan, table["data"], "data"),
        model=read_model(table["model"], "model"),
        threat=threat,
        methods={n: _entry(table, n, value, threat) for n, value in checks.named(table["methods"], "methods").items()},
        validate=build_attack(_validating(table.get("validate", {})), "validate", threat),
        attacks={name: _attack(name, attack, threat) for name, attack in given.items() if name not in awaited},
        awaited=awaited,
        evaluate=build(EvaluatePlan, table.get("evaluate", {}), "evaluate"),
        threads=checks.threads(scalar(int | None, table.get("threads"), "threads")),
        arithmetic=scalar(Arithmetic, table.get("arithmetic", "auto"), "arithmetic"),
        sweep=None if table.get("sweep") is None else build(SweepPlan, table["sweep"], "sweep"),
    )
    _check_references(recipe)
    return recipe


def _entry(recipe: Table, name: str, table: Table, threat: Threat) -> Entry:
    where = f"methods.{name}"
    craft = build_attack(_crafting(recipe.get("craft", {}), "craft"), "craft", threat)
    own = {"name": name, **section(table, where)}
    plan = source.merge(section(recipe.get("train", {}), "train"), section(own.pop("train", {}), f"{where}.train"))
    spare = {f.name for f in fields(TrainPlan) if f.default is None}  # false leaves them out, over a base or [train]
    plan = {key: value for key, value in plan.items() if key not in spare or value is not False}
    model = own.pop("model", None)
    if model is not None:
        model = read_model(source.merge(recipe["model"], section(model, f"{where}.model")), f"{where}.model")
    method = build_method(_with_crafting(own, where), where, threat, craft)
    return Entry(method=method, train=build(TrainPlan, plan, f"{where}.train"), model=model)


def _with_crafting(value: Any, where: str) -> dict[str, Any]:
    """The table of a method, its own attack and that of a method inside it completed."""
    table = section({"name": value} if isinstance(value, str) else value, where)
    if "attack" in table:
        table["attack"] = _crafting(table["attack"], f"{where}.attack")
    if "method" in table:
        table["method"] = _with_crafting(table["method"], f"{where}.method")
    return table


def _crafting(value: Any, where: str) -> dict[str, Any]:
    """An attack for training or transfer: PGD unless another is named, and its last iterate where there is a choice."""
    table = {"name": "pgd", **section({"name": value} if isinstance(value, str) else value, where)}
    return completed({"keep": "last", **table} if "keep" in _choices(table, where) else table, where)


def completed(table: Table, where: str) -> dict[str, Any]:
    """The table of an attack, that of an attack inside it completed."""
    inner = (
        {"attack": _crafting(table.get("attack", {}), f"{where}.attack")} if "attack" in _choices(table, where) else {}
    )
    return {**table, **inner}


def _choices(table: Table, where: str) -> list[str]:
    return [field.name for field in fields(member("attack", table["name"], where))]


def _attacking(name: str, value: Any) -> dict[str, Any]:
    """The table of an attack with the attack's name in it: that of the entry unless it says another."""
    return {"name": name, **value} if isinstance(value, Mapping) else {"name": value}


def _attack(name: str, table: dict[str, Any], threat: Threat) -> Attack | TransferPlan:
    where = f"attacks.{name}"
    table = completed(table, where)
    if table["name"] != "transfer":
        return build_attack(table, where, threat)
    table.pop("name")
    return cast(TransferPlan, build(TransferPlan, table, where, {"threat": threat}))


def _validating(value: Any) -> dict[str, Any]:
    table = section({"name": value} if isinstance(value, str) else value, "validate")
    return completed(table if "name" in table else {"name": "pgd", "steps": 10, **table}, "validate")


def _check_references(recipe: Recipe) -> None:
    plan = recipe.evaluate
    for key, name in (("curve", plan.curve), ("strip", plan.strip)):
        if name is not None and name not in recipe.attacks:
            raise ValueError(unknown(f"attack {name!r} in evaluate.{key}", name, recipe.attacks))
    if plan.curve is not None:
        _check_curve(plan.curve, plan.eps, recipe.attacks)
    for name, entry in recipe.methods.items():
        _check_start(name, entry.train.init_from, recipe.methods)
    for name, attack in recipe.attacks.items():
        if not isinstance(attack, TransferPlan):
            continue
        if attack.source not in (*recipe.methods, "self"):
            raise ValueError(unknown(f"source {attack.source!r} in attacks.{name}", attack.source, recipe.methods))
        if len(recipe.seeds) < 2:
            raise ValueError(
                f"attacks.{name} crafts on a model trained with another seed; give at least two seeds, "
                f"or go without: {source.without([name])}"
            )


def _check_curve(curve: str, radii: Sequence[float], attacks: Mapping[str, Attack | TransferPlan]) -> None:
    """What would otherwise fail, or pass as another attack, only after training."""
    chosen = attacks[curve]
    attack = chosen.attack if isinstance(chosen, TransferPlan) else chosen
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


def _check_start(name: str, start: str | None, methods: Mapping[str, Entry]) -> None:
    seen = [name]
    while start is not None and start in methods:
        if start in seen:
            raise ValueError(f"methods.{name}.train.init_from leads back to {start!r}, so neither could start")
        seen.append(start)
        start = methods[start].train.init_from
    if start is not None and not start.endswith(".safetensors"):
        where = f"init_from {start!r} in methods.{seen[-1]}.train"
        raise ValueError(unknown(where, start, methods) + ", or the path of a .safetensors file")
