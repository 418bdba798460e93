"""A recipe: everything a study needs, as TOML validated into frozen dataclasses.

A recipe names a data set and what is measured on it. All other tables are optional: [methods] trains models, [models]
names the user's own networks, [metrics] learns metrics for nearest neighbors, [attacks], [certificates] and [certify]
measure them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from shlex import join
from typing import Any, Literal, cast

from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack, Cascade, Certifier, Method
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.geometry import Threat
from holdfast.members import unknown
from holdfast.recipes import checks, source
from holdfast.recipes.attack import (
    TransferConfig,
    crafting,
    entry_table,
    read_attack,
    read_validation,
    with_crafting,
)
from holdfast.recipes.build import Table, build, build_attack, build_method, build_threat, scalar, section, table_of
from holdfast.recipes.certify import (
    CertifyConfig,
    MetricConfig,
    certifier_table,
    check_certificates,
    read_certifier,
    read_metric,
)
from holdfast.recipes.model import ModelConfig, OwnModelConfig, read_model
from holdfast.recipes.sweep import SweepConfig
from holdfast.recipes.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data set, and the share or number of training samples that are held out for validation."""

    name: str
    valid: float | int = 0.1
    seed: int = 0  # of the validation split, which all models of the study share
    verify: bool = True  # refuse files that do not match their published checksum
    size: tuple[int, int] | None = None  # resize image files to the first, then crop to the second; only for [models]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of a study: a method, how it is trained, and its model (None: the model of the recipe)."""

    method: Method
    train: TrainConfig
    model: ModelConfig | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """The evaluation: how many test samples (None: all), and the points of the accuracy-vs-eps curve."""

    samples: int | None = None
    weights: Literal["best", "last"] = "best"
    seed: int = 0
    shard: int = 1000  # samples per stored part
    curve: str | None = None  # the attack that measures the curve
    eps: tuple[float, ...] = ()
    strip: str | None = None  # the attack whose images are shown on the page
    confirm: int | Literal["all"] | None = None  # survivors of triage on which AutoAttack is run too, drawn at random

    def __post_init__(self) -> None:
        if self.confirm is not None and self.confirm != "all" and self.confirm < 1:
            raise ValueError(f'confirm is {self.confirm} but must be a number of samples, at least 1, or "all"')
        if self.shard < 1 or (self.samples is not None and self.samples < 1):
            raise ValueError(f"shard is {self.shard} and samples {self.samples} but both must be at least 1")
        if not all(0 <= eps < inf for eps in self.eps):
            raise ValueError(f"eps is {list(self.eps)} but the curve is measured at finite radii of zero or more")
        if self.eps and self.curve is None:
            raise ValueError('eps is given but no curve; name the attack that measures it, e.g. curve = "PGD-40"')


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A study: one data set, the classifiers that are compared on it, and how they are attacked and certified.

    Classifiers are models that ``methods`` train, the user's own ``models``, and nearest neighbors under ``metrics``.
    """

    name: str
    title: str
    description: str
    seeds: tuple[int, ...]
    data: DataConfig
    model: ModelConfig | None = None
    threat: Threat | None = None
    methods: Mapping[str, Entry] = field(default_factory=dict)
    models: Mapping[str, OwnModelConfig] = field(default_factory=dict)
    metrics: Mapping[str, MetricConfig] = field(default_factory=dict)
    validate: Attack | None = None
    attacks: Mapping[str, Attack | TransferConfig] = field(default_factory=dict)
    certificates: Mapping[str, Certifier] = field(default_factory=dict)  # of networks, before they have one
    evaluate: EvaluateConfig = EvaluateConfig()
    certify: CertifyConfig | None = None
    threads: int | None = None  # threads torch may use; small models are faster with one
    arithmetic: Arithmetic = "auto"  # precision of attacks; judging is always float32
    crafting: Mode = "auto"  # "module": attacks call the model itself, not its fast form
    sweep: SweepConfig | None = None  # settings of `holdfast sweep`
    call: str = field(default="", compare=False)  # its name or path and its changes, as commands take them

    def __post_init__(self) -> None:
        if self.crafting == "module" and self.arithmetic == "bfloat16":
            raise ValueError('crafting = "module" calls the model itself, in float32; leave arithmetic out')
        if self.evaluate.confirm is not None and not any(isinstance(one, Triage) for one in self.attacks.values()):
            raise ValueError(
                "confirm runs AutoAttack on samples that triage leaves standing, but triage is not among the attacks; "
                "add it or leave confirm out"
            )

    @property
    def default_out(self) -> Path:
        """The folder for results if none is given."""
        return Path("runs") / self.name

    def model_of(self, method: str) -> ModelConfig:
        """The model that a method trains."""
        return cast(ModelConfig, self.methods[method].model or self.model)

    def table(self) -> dict[str, Any]:
        """The resolved recipe with every default and without empty tables; :func:`read` reads it back."""
        table = cast(dict[str, Any], table_of(self))
        for entry in table["methods"].values():
            method = entry.pop("method")
            entry.update(method)
        for name, attack in self.attacks.items():
            if isinstance(attack, TransferConfig):
                table["attacks"][name] = {"name": "transfer", **table["attacks"][name]}
        table["certificates"] = {name: certifier_table(certifier) for name, certifier in self.certificates.items()}
        table["metrics"] = {name: metric.table() for name, metric in self.metrics.items()}
        del table["call"]
        return {key: value for key, value in table.items() if value != {}}


def curve_name(attack: str, eps: float) -> str:
    """The name of an attack that measures a point of the curve at another eps than its own."""
    return f"{attack}@{eps:g}"


def load(name: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or the path of a .toml file, with ``key=value`` changes applied."""
    call = join([name, *(word for change in changes for word in ("--set", change))])
    return replace(read(source.changed(name, changes), name), call=call)


def read(table: Table, where: str = "recipe", *, stored: bool = False) -> Recipe:
    """A recipe from its table; ``stored`` recipes come from results, and their names are not checked again."""
    table = {key: value for key, value in table.items() if value is not False}  # as --set leaves out a table
    _check_tables(table, where)
    threat = None if table.get("threat") is None else build_threat(table["threat"], "threat")
    name = checks.folder_name(str(table.get("name", where)))
    recipe = Recipe(
        name=name,
        title=str(table.get("title", name)),
        description=str(table.get("description", "")),
        seeds=checks.seeds(table.get("seeds", [0])),
        data=build(DataConfig, table["data"], "data"),
        model=None if table.get("model") is None else read_model(table["model"], "model"),
        threat=threat,
        methods={n: _entry(table, n, value, cast(Threat, threat)) for n, value in _named(table, "methods").items()},
        models={n: build(OwnModelConfig, value, f"models.{n}") for n, value in _named(table, "models", stored).items()},
        metrics={n: read_metric(n, value) for n, value in _named(table, "metrics").items()},
        validate=None if threat is None else read_validation(table.get("validate") or {}, threat),
        attacks=_attacks(table, threat, stored),
        certificates={n: read_certifier(n, value) for n, value in _named(table, "certificates").items()},
        evaluate=build(EvaluateConfig, table.get("evaluate", {}), "evaluate"),
        certify=None if table.get("certify") is None else build(CertifyConfig, table["certify"], "certify"),
        threads=checks.threads(scalar(int | None, table.get("threads"), "threads")),
        arithmetic=scalar(Arithmetic, table.get("arithmetic", "auto"), "arithmetic"),
        crafting=scalar(Mode, table.get("crafting", "auto"), "crafting"),
        sweep=None if table.get("sweep") is None else build(SweepConfig, table["sweep"], "sweep"),
    )
    _check_references(recipe)
    return recipe


_NEEDS = {
    "methods": ("model", "threat", "attacks"),
    "models": ("threat", "attacks"),
    "metrics": ("certify",),
    "certificates": ("certify", "methods or models"),
    "certify": ("metrics or certificates",),
    "attacks": ("threat",),
}


def _check_tables(table: Table, where: str) -> None:
    """Refuse unknown tables, and tables without another table that they need."""
    known = {field.name for field in fields(Recipe)} - {"call"} | {"train", "craft"}
    for key in table:
        if key not in known:
            raise ValueError(unknown(f"key {key!r} in {where}", key, known))
    if "data" not in table:
        raise ValueError(f"{where} needs a [data] section")
    if not any(key in table for key in ("methods", "models", "metrics")):
        raise ValueError(
            f"{where} needs a [methods] section (or [models] or [metrics]), so that there is something to do"
        )
    for key, needed in _NEEDS.items():
        for others in needed if table.get(key) is not None else ():
            if all(table.get(other) is None for other in others.split(" or ")):
                raise ValueError(f"{where} needs a [{others.replace(' or ', '] or [')}] section")


def _named(table: Table, key: str, stored: bool = False) -> dict[str, Any]:
    return {} if table.get(key) is None else checks.named(table[key], key, stored=stored)


def _attacks(table: Table, threat: Threat | None, stored: bool) -> dict[str, Attack | TransferConfig]:
    """The attacks of the evaluation."""
    if threat is None:
        return {}
    given = _named(table, "attacks", stored).items()
    return {name: read_attack(name, entry_table(name, value), threat) for name, value in given}


def _entry(recipe: Table, name: str, table: Table, threat: Threat) -> Entry:
    where = f"methods.{name}"
    craft = build_attack(crafting(recipe.get("craft", {}), "craft"), "craft", threat)
    entry = {"name": name, **section(table, where)}
    train = source.merge(section(recipe.get("train", {}), "train"), section(entry.pop("train", {}), f"{where}.train"))
    optional = {f.name for f in fields(TrainConfig) if f.default is None}  # `false` removes a value of [train]
    train = {key: value for key, value in train.items() if key not in optional or value is not False}
    model = entry.pop("model", None)
    if model is not None:
        model = read_model(source.merge(recipe["model"], section(model, f"{where}.model")), f"{where}.model")
    method = build_method(with_crafting(entry, where), where, threat, craft)
    return Entry(method=method, train=build(TrainConfig, train, f"{where}.train"), model=model)


def _check_references(recipe: Recipe) -> None:
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
            _check_transfer(name, attack, recipe)
    if recipe.certify is not None and recipe.certificates:
        curve = [] if evaluate.curve is None else [curve_name(evaluate.curve, eps) for eps in evaluate.eps]
        check_certificates(recipe.certificates, recipe.certify, evaluate.samples, ["clean", *recipe.attacks, *curve])
    checks.different_rows(recipe.methods, recipe.models, recipe.metrics)
    if recipe.data.size is not None and (recipe.methods or recipe.metrics):
        raise ValueError("data.size is given but only the user's own [models] are evaluated on scaled images")


def _check_transfer(name: str, attack: TransferConfig, recipe: Recipe) -> None:
    if recipe.models:
        raise ValueError(
            f"attacks.{name} crafts on another model of [methods], which [models] do not have; leave it out"
        )
    for method in attack.sources:
        if method not in (*recipe.methods, "self"):
            raise ValueError(unknown(f"source {method!r} in attacks.{name}", method, recipe.methods))
    if len(recipe.seeds) < 2:
        raise ValueError(
            f"attacks.{name} crafts on a model trained with another seed; give at least two seeds, "
            f"or go without: {source.without([name])}"
        )


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
