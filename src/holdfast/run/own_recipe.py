"""The recipe of `holdfast evaluate --model`, from its command line and from results that are already in its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal, cast

from holdfast.contracts import Attack, Cascade
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.geometry import Threat
from holdfast.recipes.build import build_threat, json_table, scalar
from holdfast.recipes.schema import DataConfig, EvaluateConfig, Recipe
from holdfast.recipes.short import default_attacks, name_at, read_attack
from holdfast.recipes.stored import read_recipe
from holdfast.recipes.tables.attack import TransferConfig
from holdfast.recipes.tables.model import OwnModelConfig
from holdfast.records.records import Records
from holdfast.run.subjects.own_models import folder_name


def read(
    model: str,
    *,
    data: str | None,
    threat: str | None,
    weights: Path | None = None,
    size: str | None = None,
    mean: str | None = None,
    std: str | None = None,
    attack: Sequence[str] = (),
    samples: int | None = None,
    seed: int | None = None,
    arithmetic: Arithmetic | None = None,
    crafting: Mode | None = None,
    confirm: str | None = None,
    eps: str | None = None,
) -> Recipe:
    """The recipe that the options of the command line describe."""
    check_given({"--data": (data, "imagefolder:PATH"), "--threat": (threat, "linf:8/255")})
    if (samples is not None and samples < 1) or (seed is not None and seed < 0):
        raise ValueError(
            f"--samples is {samples} and --seed {seed} but there must be a sample, and a seed is 0 or more"
        )
    allowed = build_threat(threat, "--threat")
    attacks = _attacks(attack or default_attacks(allowed), allowed)
    pictured = next((name for name in reversed(attacks) if not isinstance(attacks[name], Cascade)), None)
    if eps and pictured is None:
        raise ValueError("--eps measures the curve of an attack that is not a cascade; name one, e.g. --attack pgd")
    file = None if weights is None else weights.name
    return Recipe(
        name=name_of(model, weights, str(data), allowed),
        title=f"{model} under attack",
        description=f"{data}; weights: {file or 'as built'}.",
        seeds=(seed or 0,),
        data=DataConfig(name=str(data), size=read_size(size)),
        threat=allowed,
        models={model: model_config(model, weights, mean, std)},
        attacks=attacks,
        evaluate=EvaluateConfig(
            samples=samples,
            seed=seed or 0,
            strip=pictured,
            confirm=_confirm(confirm),
            curve=pictured if eps else None,
            eps=scalar(tuple[float, ...], eps.split(","), "--eps") if eps else (),
        ),
        arithmetic=arithmetic or "auto",
        crafting=crafting or "auto",
    )


def name_of(model: str, weights: Path | None, data: str, threat: Threat) -> str:
    """The name of the default folder: other models, weights, data and threats have other folders."""
    file = [] if weights is None else [weights.stem]
    return folder_name("-".join([model, *file, Path(data.rpartition(":")[2]).name, threat.short]))


def with_stored(asked: Recipe, out: Path) -> Recipe:
    """The recipe with the attacks of the results that the folder holds, so that the new ones are added to them.

    Attacks belong together if they attack one model on the same samples with the same seed and arithmetic; attacks at
    another threat say so in their names. Other results are refused: one page could not show both.
    """
    (model,) = asked.models
    facts = min((out / folder_name(model)).glob("seed-*/records/facts.json"), default=None)
    if facts is None:
        return asked
    stored = read_recipe(Records.load(facts.parent).facts["recipe"], f"the recipe in {facts.parent}")
    check_same(_settings(stored), _settings(asked), out)
    attacks = {_name_beside(stored, name, attack): attack for name, attack in asked.attacks.items()}
    for name in attacks.keys() & stored.attacks.keys():
        before, now = (json_table(of[name]) for of in (stored.attacks, attacks))
        check_same({f"attack {name}": before}, {f"attack {name}": now}, out)
    kept, asks = stored.evaluate, asked.evaluate
    for key in ("confirm", "curve"):
        if None not in (before := getattr(kept, key), now := getattr(asks, key)):
            check_same({key: before}, {key: now}, out)
    merged = {key: getattr(kept, key) or getattr(asks, key) for key in ("strip", "confirm", "curve")}
    return replace(
        asked,
        **{key: getattr(stored, key) for key in ("name", "title", "description", "threat")},
        attacks={**stored.attacks, **attacks},
        evaluate=replace(asks, **merged, eps=tuple(sorted({*kept.eps, *asks.eps}))),
    )


def _name_beside(stored: Recipe, name: str, attack: Attack | TransferConfig) -> str:
    """The name of a new attack beside the stored ones: at another threat it says which."""
    assert not isinstance(attack, TransferConfig)  # the command line has none
    return name if attack.threat == stored.threat else name_at(name, attack.threat)


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> None:
    """Refuse to add results to those of other settings."""
    for key, value in now.items():
        if before[key] != value:
            folder = quote(f"{out}-{folder_name(f'{key}-{_words(value)}')}")
            raise ValueError(
                f"{out} holds results with {key} {_words(before[key])}, to which results with {key} {_words(value)} "
                f"cannot be added; use another folder for them: --out {folder}"
            )


def _words(value: Any) -> str:
    return "all" if value is None else "other settings" if isinstance(value, dict) else str(value)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The options that must be the same for results that stand on one page."""
    config = recipe.evaluate
    given = {"data": recipe.data.name, "size": recipe.data.size, "samples": config.samples, "seed": config.seed}
    return given | {"arithmetic": recipe.arithmetic, "crafting": recipe.crafting}


def _confirm(text: str | None) -> int | Literal["all"] | None:
    return cast(int | Literal["all"] | None, scalar(int | Literal["all"] | None, text, "--confirm"))


def model_config(module: str, weights: Path | None, mean: str | None, std: str | None) -> OwnModelConfig:
    """The model of the options --model, --weights, --mean and --std."""
    texts = {"mean": mean.split(",") if mean else [], "std": std.split(",") if std else []}
    numbers = {key: scalar(tuple[float, ...], [*map(str.strip, text)], f"--{key}") for key, text in texts.items()}
    try:
        return OwnModelConfig(module=module, weights=None if weights is None else str(weights), **numbers)
    except ValueError as error:
        raise ValueError(
            f"--mean is {mean!r} and --std {std!r} but both need one number per channel, std above 0"
        ) from error


def check_given(options: Mapping[str, tuple[str | None, str]]) -> None:
    """Refuse that an option which --model needs is missing; each comes with its value and an example."""
    for option, (value, example) in options.items():
        if not value:
            raise ValueError(f"--model needs {option} too, e.g. {option} {example}")


def _attacks(given: Sequence[str], threat: Threat) -> dict[str, Attack]:
    attacks: dict[str, Attack] = {}
    for text in given:
        name, where = "".join(text.split()), f"--attack {text}"
        if name in attacks:
            raise ValueError(f"{where} is given twice; give attacks that differ")
        attacks[name] = read_attack(text, where, threat)
    return attacks


def read_size(text: str | None) -> tuple[int, int] | None:
    """The numbers of pixels of --size: to resize to, and to crop."""
    if text is None:
        return None
    parts = [int(part) if part.isdecimal() else 0 for part in text.split(":")]
    if len(parts) > 2 or not 1 <= parts[-1] <= parts[0] < 1 << 15:
        raise ValueError(f"--size is {text!r} but must be a number of pixels, or two as in 256:224, the second smaller")
    return parts[0], parts[-1]
