"""A recipe: everything a study needs, as TOML validated into frozen dataclasses.

A recipe names a data set and what is measured on it. All other tables are optional: [methods] trains models, [models]
names the user's own networks, [metrics] learns metrics for nearest neighbors, [attacks], [certificates], [certify] and
[analyze] measure them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from shlex import join
from typing import Any, Literal, cast

from holdfast.attacks.triage import Triage
from holdfast.contracts import Attack, Certifier, Method
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.geometry import Threat
from holdfast.members import unknown
from holdfast.recipes import checks, source
from holdfast.recipes.build import Table, build, build_attack, build_method, build_threat, scalar, section, table_of
from holdfast.recipes.references import check_references, without_transfer
from holdfast.recipes.tables.analyze import AnalyzeConfig
from holdfast.recipes.tables.attack import (
    TransferConfig,
    crafting,
    entry_table,
    read_attack,
    read_validation,
    with_crafting,
)
from holdfast.recipes.tables.certify import (
    CertifyConfig,
    MetricConfig,
    certifier_table,
    read_certifier,
    read_metric,
    shared_samples,
)
from holdfast.recipes.tables.model import ModelConfig, OwnModelConfig, changed_model, read_model
from holdfast.recipes.tables.sweep import SweepConfig
from holdfast.recipes.tables.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data set, and the share or number of training samples that are held out for validation."""

    name: str
    valid: float | int = 0.1
    seed: int = 0  # of the validation split, which all models of the study share
    verify: bool = True  # refuse files that do not match their published checksum
    size: tuple[int, int] | None = None  # resize image files to the first, then crop to the second


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
    skip_certified: bool = False  # samples that a certificate proves at the eps of an attack are not attacked

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
    analyze: AnalyzeConfig | None = None
    threads: int | None = None  # threads torch may use; small models are faster with one
    arithmetic: Arithmetic = "auto"  # precision of attacks; judging is always float32
    crafting: Mode = "auto"  # "module": attacks call the model itself, not its fast form
    sweep: SweepConfig | None = None  # settings of `holdfast sweep`
    call: str = field(default="", compare=False)  # its name or path and its changes, as commands take them
    folder: Path | None = field(default=None, compare=False)  # of the results that it was read from
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was left out, and why

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
        return self.folder or Path("runs") / self.name

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
        for key in _UNSTORED:
            del table[key]
        return {key: value for key, value in table.items() if value != {}}


_UNSTORED = ("call", "folder", "notes")


def load(name: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by its name, the path of a .toml file, or a folder of results, with ``key=value`` changes applied."""
    call = join([name, *(word for change in changes for word in ("--set", change))])
    folder = source.results(name)
    return replace(read(source.changed(name, changes), name, stored=folder is not None), call=call, folder=folder)


def read(table: Table, where: str = "recipe", *, stored: bool = False) -> Recipe:
    """A recipe from its table; ``stored`` recipes come from results, and their names are not checked again."""
    table = {key: value for key, value in table.items() if value is not False}  # as --set leaves out a table
    _check_tables(table, where)
    table = shared_samples(table)
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
        methods={n: read_entry(table, n, value, cast(Threat, threat)) for n, value in _named(table, "methods").items()},
        models={n: build(OwnModelConfig, value, f"models.{n}") for n, value in _named(table, "models", stored).items()},
        metrics={n: read_metric(n, value) for n, value in _named(table, "metrics").items()},
        validate=None if threat is None else read_validation(table.get("validate") or {}, threat),
        attacks=_attacks(table, threat, stored),
        certificates={n: read_certifier(n, value) for n, value in _named(table, "certificates").items()},
        evaluate=build(EvaluateConfig, _set(table.get("evaluate", {}), "evaluate"), "evaluate"),
        certify=None if table.get("certify") is None else build(CertifyConfig, table["certify"], "certify"),
        analyze=None if table.get("analyze") is None else build(AnalyzeConfig, table["analyze"], "analyze"),
        threads=checks.threads(scalar(int | None, table.get("threads"), "threads")),
        arithmetic=scalar(Arithmetic, table.get("arithmetic", "auto"), "arithmetic"),
        crafting=scalar(Mode, table.get("crafting", "auto"), "crafting"),
        sweep=None if table.get("sweep") is None else build(SweepConfig, table["sweep"], "sweep"),
    )
    check_references(recipe)
    return without_transfer(recipe)


_NEEDS = {
    "methods": ("model", "threat", "attacks"),
    "models": ("threat", "attacks"),
    "metrics": ("certify",),
    "certificates": ("certify", "methods or models"),
    "certify": ("metrics or certificates",),
    "analyze": ("methods or models",),
    "attacks": ("threat",),
}


def _check_tables(table: Table, where: str) -> None:
    """Refuse unknown tables, and tables without another table that they need."""
    known = {field.name for field in fields(Recipe)} - {*_UNSTORED} | {"train", "craft"}
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


def _set(value: Any, where: str) -> dict[str, Any]:
    """A table without the values that `false` removes."""
    return {key: item for key, item in section(value, where).items() if item is not False}


def _named(table: Table, key: str, stored: bool = False) -> dict[str, Any]:
    return {} if table.get(key) is None else checks.named(table[key], key, stored=stored)


def _attacks(table: Table, threat: Threat | None, stored: bool) -> dict[str, Attack | TransferConfig]:
    """The attacks of the evaluation."""
    if threat is None:
        return {}
    given = _named(table, "attacks", stored).items()
    return {name: read_attack(name, entry_table(name, value), threat) for name, value in given}


def read_entry(recipe: Table, name: str, table: Table | str, threat: Threat) -> Entry:
    """A method from its table, with the defaults of the tables [train], [craft] and [model] of its recipe."""
    where = f"methods.{name}"
    craft = build_attack(crafting(recipe.get("craft", {}), "craft"), "craft", threat)
    entry = entry_table(name, table if isinstance(table, str) else section(table, where))
    train = source.merge(section(recipe.get("train", {}), "train"), section(entry.pop("train", {}), f"{where}.train"))
    optional = {f.name for f in fields(TrainConfig) if f.default is None}  # `false` removes a value of [train]
    train = {key: value for key, value in train.items() if key not in optional or value is not False}
    model = entry.pop("model", None)
    if model is not None:
        model = read_model(changed_model(recipe["model"], section(model, f"{where}.model")), f"{where}.model")
    method = build_method(with_crafting(entry, where), where, threat, craft)
    return Entry(method=method, train=build(TrainConfig, train, f"{where}.train"), model=model)
