"""A sweep: trains one method of a recipe with many values of some keys and compares them on validation samples."""

import json
import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from holdfast.recipes import kinds, schema, source, toml
from holdfast.recipes.build import json_table, table_of
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.sweep import Axis, Range, Sampler, SweepConfig, Value, read_space
from holdfast.records import snapshot
from holdfast.records.files import read_json, write_text
from holdfast.records.provenance import commit, versions
from holdfast.report import sweep as results
from holdfast.run.session import Session
from holdfast.run.study import rows
from holdfast.run.subjects.trained import Trained, folder_of, starts
from holdfast.run.trials import Task, Trials
from holdfast.statistics import Share

TRIALS = 20
_SECTIONS = ("model", "train", "craft")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The settings of a sweep: a recipe, one of its methods and seeds, the keys that vary and their sampler."""

    recipe: Recipe
    table: Mapping[str, Any]  # the raw recipe, read once: later changes of its file do not change trials
    method: str
    seed: int
    space: Mapping[str, Axis]
    sampler: Sampler
    sampler_seed: int
    trials: int
    options: tuple[str, ...]  # the recipe and its options as `holdfast train` takes them

    def recipe_of(self, values: Mapping[str, Value]) -> Recipe:
        return _changed(self.table, self.recipe, values)

    def command(self, values: Mapping[str, Value], out: Path) -> str:
        """The command that trains with these values and every seed of the recipe."""
        changes = [word for change in _settings(values) for word in ("--set", change)]
        return shlex.join(
            ["holdfast", "train", *self.options, "--method", self.method, *changes, "--out", str(out / "best")]
        )

    def called_with(self, data_dir: Path | None, device: str) -> "Sweep":
        """The same sweep, whose commands use this data folder and device."""
        folder = () if data_dir is None else ("--data-dir", str(data_dir))
        return replace(self, options=(*self.options, *folder, *(() if device == "auto" else ("--device", device))))

    def identity(self) -> dict[str, Any]:
        """Everything that trials depend on except the data; the number of trials may be raised later."""
        space = {key: asdict(axis) for key, axis in self.space.items()}
        drawn = {"sampler": self.sampler, "seed": self.sampler_seed, "space": space}
        return {"trained": _trained(self.recipe, self.method), "seed": self.seed, "drawn": drawn}


def read(
    name: str,
    changes: Sequence[str] = (),
    *,
    over: Sequence[str] = (),
    method: str | None = None,
    seed: int | None = None,
    sampler: Sampler | None = None,
    trials: int | None = None,
) -> Sweep:
    """A sweep from the recipe's [sweep] table and the options of the command line, which take precedence."""
    table = source.changed(name, changes)
    recipe = schema.load(name, changes)
    given = recipe.sweep or SweepConfig()
    given = replace(
        given,
        method=method or given.method,
        sampler=sampler or given.sampler,
        trials=given.trials if trials is None else trials,
        over=_over(over) if over else given.over,
    )
    row = rows(recipe, ("methods",), _method(recipe, given.method), seed)[0]
    space = read_space(given.over)
    if not space:
        raise ValueError(
            "nothing to sweep; name a key and its values, e.g. --over train.optimizer.lr=1e-4..1e-1:log, "
            "or write a [sweep.over] table into the recipe"
        )
    space = {key: _checked(table, recipe, row.name, key, axis) for key, axis in space.items()}
    return Sweep(
        recipe=recipe,
        table=table,
        method=row.name,
        seed=row.seed,
        space=space,
        sampler=given.sampler,
        sampler_seed=given.seed,
        trials=_count(space, given),
        options=(name, *(word for change in changes for word in ("--set", change))),
    )


def _over(options: Sequence[str]) -> dict[str, Any]:
    """The table [sweep.over] that the options --over describe."""
    table: dict[str, Any] = {}
    for option in options:
        one: dict[str, Any] = {}
        try:
            source.change(one, option)
        except ValueError:
            raise ValueError(
                f"--over {option!r} is not of the form key=values, e.g. --over train.batch=[32,64]"
            ) from None
        (axis,) = read_space(one)
        if axis in read_space(table):
            raise ValueError(f"--over names {axis} twice; leave one out")
        table = source.merge(table, one)
    return table


def _method(recipe: Recipe, name: str | None) -> str:
    if not recipe.methods:
        raise ValueError(f"recipe {recipe.name} has no [methods] section, so there is nothing to sweep")
    if name is None and len(recipe.methods) > 1:
        raise ValueError(f"a sweep is of one method; choose it with --method: {', '.join(recipe.methods)}")
    return next(iter(recipe.methods)) if name is None else name


def _count(space: Mapping[str, Axis], config: SweepConfig) -> int:
    if config.sampler != "grid":
        return config.trials or TRIALS
    for key, axis in space.items():
        if axis.listed is None:
            raise ValueError(f"{key} is {axis}, which a grid cannot count; give a list of values or another --sampler")
    points = prod(len(axis.listed or ()) for axis in space.values())
    return min(points, config.trials or points)


def _checked(table: Mapping[str, Any], recipe: Recipe, method: str, key: str, axis: Axis) -> Axis:
    """The axis, refused if it does not affect the method; a range has integers only if the key requires them."""
    section, *rest = source.parts(key)
    if section not in _SECTIONS and [section, *rest[:1]] != ["methods", method]:
        allowed = ", ".join([*_SECTIONS, f"methods.{toml.key(method)}"])
        raise ValueError(f"{key} cannot be swept: trials are judged alike, so only keys under {allowed} may vary")
    if isinstance(axis, Range) and axis.whole:
        axis = replace(axis, whole=not _accepted(table, recipe, {key: axis.low + 0.5}))
    probed = [_changed(table, recipe, {key: value}) for value in axis.probes]
    if len({json.dumps(_trained(one, method), sort_keys=True) for one in probed}) == 1:
        raise ValueError(f"{key} cannot be swept: it changes nothing about {method}, whose own keys may overrule it")
    if len({one.methods[method].train.validate_samples for one in (recipe, *probed)}) > 1:
        raise ValueError(f"{key} cannot be swept: every trial must be judged on the same validation samples")
    return axis


def _accepted(table: Mapping[str, Any], recipe: Recipe, values: Mapping[str, Value]) -> bool:
    try:
        _changed(table, recipe, values)
    except ValueError:
        return False
    return True


def _changed(table: Mapping[str, Any], recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    changed = deepcopy(dict(table))
    for change in _settings(values):
        source.change(changed, change)
    return schema.read(changed, recipe.name, stored=recipe.folder is not None)


def _settings(values: Mapping[str, Value]) -> list[str]:
    return [f"{key}={toml.value(value)}" for key, value in values.items()]


def _trained(recipe: Recipe, method: str) -> dict[str, Any]:
    """Everything in a recipe that determines the weights of a method and how they are validated."""
    parts = {name: json_table(recipe.table()["methods"][name]) for name in (*starts(recipe, method), method)}
    models = {name: json_table(recipe.model_of(name)) for name in parts}
    judged = {"validate": json_table(recipe.validate), "data": table_of(recipe.data)}
    return {"methods": parts, "models": models, "arithmetic": recipe.arithmetic, "crafting": recipe.crafting, **judged}


def run(sweep: Sweep, session: Session) -> results.Sweep:
    """Run trials until all have ended, also in several processes; write the tables and the page after every trial."""
    trials = _open(sweep, session)
    while True:
        task = trials.next(sweep.trials)
        with trials.lock:  # so that the newest results are written last
            result = _results(sweep, trials)
            results.write_sweep(trials.folder, result)
        session.progress(f"sweep {sweep.method}", result.ended, sweep.trials, result.so_far)
        if task is None:
            break
        try:
            _attempt(sweep, session, trials, task)
        finally:
            task.claim.release()
    if result.best is None and not result.running:
        raise RuntimeError(f"no trial of {len(result.trials)} ended well; the first: {result.trials[0].reason}")
    return result


def _open(sweep: Sweep, session: Session) -> Trials:
    folder = session.out / "sweep" / sweep.method
    folder.mkdir(parents=True, exist_ok=True)
    trials = Trials(folder, sweep.space, sweep.sampler, sweep.sampler_seed)
    path = folder / "sweep.json"
    text = json.dumps(sweep.identity() | {"digest": session.data.digest}, indent=1, sort_keys=True) + "\n"
    with trials.lock:
        if not path.is_file():
            write_text(path, text)
        if path.read_text(encoding="utf-8") != text:
            raise ValueError(f"{folder} holds a sweep of other settings; choose another --out or remove it")
    return trials


def _attempt(sweep: Sweep, session: Session, trials: Trials, task: Task) -> None:
    """Train one trial; an error marks it as failed, but a disk error, which would fail every trial, is raised."""
    folder = trials.folder / "trials" / str(task.number)
    try:
        _train(sweep, session, folder, task)
    except OSError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        trials.failed(task, reason)
        session.progress("training", 1, 1, f"trial {task.number} failed: {reason}")
        return
    model = folder_of(folder, sweep.method, sweep.seed)
    _, best = snapshot.read(model / "best.safetensors")
    robust, clean = (Share(round(best[name] * best["samples"]), best["samples"]) for name in ("robust", "clean"))
    trials.done(task, robust, clean, best["epoch"], read_json(model / "trained.json")["seconds"])


def _train(sweep: Sweep, session: Session, folder: Path, task: Task) -> None:
    def progress(what: str, done: int, total: int, message: str) -> None:
        session.progress("training", done, total, ", ".join(filter(None, [f"trial {task.number}", message])))

    trial = replace(session, recipe=sweep.recipe_of(task.values), out=folder, progress=progress)
    Trained(trial).prepare(sweep.method, sweep.seed)


def _results(sweep: Sweep, trials: Trials) -> results.Sweep:
    recipe = sweep.recipe
    assert recipe.validate is not None  # a recipe with methods has a threat
    result = results.Sweep(
        name=recipe.name,
        title=recipe.title,
        method=sweep.method,
        seed=sweep.seed,
        judge=f"{kinds.name_of(recipe.validate)} ({recipe.validate.threat})",
        sampler=sweep.sampler,
        axes=[
            results.Axis(key=key, values=str(axis), log=isinstance(axis, Range) and axis.log, listed=axis.listed)
            for key, axis in sweep.space.items()
        ],
        trials=trials.known(),
        asked=sweep.trials,
        recipe=toml.dumps(recipe.table()),
        data=recipe.data.name,
        date=datetime.fromtimestamp((trials.folder / "journal.log").stat().st_mtime, UTC).date().isoformat(),
        versions=versions() | {"optuna": version("optuna"), "commit": str(commit())},
    )
    if result.best is None:
        return result
    return replace(result, command=sweep.command(result.best.values, trials.folder))
