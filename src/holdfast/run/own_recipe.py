"""The recipe of `holdfast evaluate --model`, from its command line: the user's own network, data, a threat, attacks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from holdfast.contracts import Attack, Cascade
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.geometry import Threat
from holdfast.recipes.build import build_threat, scalar
from holdfast.recipes.model import OwnModelConfig
from holdfast.recipes.schema import DataConfig, EvaluateConfig, Recipe
from holdfast.recipes.short import default_attacks, read_attack
from holdfast.run.own_models import folder_name


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
) -> Recipe:
    """The recipe that the options of the command line describe."""
    for option, value, example in (("--data", data, "imagefolder:PATH"), ("--threat", threat, "linf:8/255")):
        if not value:
            raise ValueError(f"--model needs {option} too, e.g. {option} {example}")
    if (samples is not None and samples < 1) or (seed is not None and seed < 0):
        raise ValueError(
            f"--samples is {samples} and --seed {seed} but there must be a sample, and a seed is 0 or more"
        )
    allowed = build_threat(threat, "--threat")
    attacks = _attacks(attack or default_attacks(allowed), allowed)
    pictured = [name for name, one in attacks.items() if not isinstance(one, Cascade)]
    file = None if weights is None else weights.name
    return Recipe(
        name=folder_name(model if weights is None else f"{model}-{weights.stem}"),
        title=f"{model} under attack",
        description=f"{data}; weights: {file or 'as built'}.",
        seeds=(seed or 0,),
        data=DataConfig(name=str(data), size=_size(size)),
        threat=allowed,
        models={model: _model(model, weights, mean, std)},
        attacks=attacks,
        evaluate=EvaluateConfig(
            samples=samples, seed=seed or 0, strip=pictured[-1] if pictured else None, confirm=_confirm(confirm)
        ),
        arithmetic=arithmetic or "auto",
        crafting=crafting or "auto",
    )


def _confirm(text: str | None) -> int | Literal["all"] | None:
    return cast(int | Literal["all"] | None, scalar(int | Literal["all"] | None, text, "--confirm"))


def _model(module: str, weights: Path | None, mean: str | None, std: str | None) -> OwnModelConfig:
    texts = {"mean": mean.split(",") if mean else [], "std": std.split(",") if std else []}
    numbers = {key: scalar(tuple[float, ...], [*map(str.strip, text)], f"--{key}") for key, text in texts.items()}
    try:
        return OwnModelConfig(module=module, weights=None if weights is None else str(weights), **numbers)
    except ValueError as error:
        raise ValueError(
            f"--mean is {mean!r} and --std {std!r} but both need one number per channel, std above 0"
        ) from error


def _attacks(given: Sequence[str], threat: Threat) -> dict[str, Attack]:
    attacks: dict[str, Attack] = {}
    for text in given:
        name, where = "".join(text.split()), f"--attack {text}"
        if name in attacks:
            raise ValueError(f"{where} is given twice; give attacks that differ")
        attacks[name] = read_attack(text, where, threat)
    return attacks


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = [int(part) if part.isdecimal() else 0 for part in text.split(":")]
    if len(parts) > 2 or not 1 <= parts[-1] <= parts[0] < 1 << 15:
        raise ValueError(f"--size is {text!r} but must be a number of pixels, or two as in 256:224, the second smaller")
    return parts[0], parts[-1]
