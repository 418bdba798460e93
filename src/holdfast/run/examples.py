"""Saves adversarial examples of a trained model as arrays for other tools."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts import Rows
from holdfast.evaluation.choose import crafting_with
from holdfast.evaluation.judge import attack_and_judge
from holdfast.geometry import Threat
from holdfast.records.files import write_arrays
from holdfast.report.elements.table import share_text
from holdfast.rng import Rng
from holdfast.run.session import Session
from holdfast.run.study import NETWORKS, Row, folders
from holdfast.run.subjects.networks import imports_of
from holdfast.statistics import Share


def rounded(x_adv: Tensor, x: Tensor, levels: int, threat: Threat) -> Tensor:
    """Adversarial inputs rounded to multiples of 1/levels, as an image file stores them.

    If rounding to the nearest level moves a sample out of the threat, its values are rounded towards x instead.
    """
    grid = x_adv * levels
    near, towards = grid.round() / levels, torch.where(x_adv > x, grid.floor(), grid.ceil()) / levels
    inside = threat.contains(near, x).reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(inside, near, towards)


def save_examples(session: Session, row: Row, attack: str, levels: int | None, path: Path) -> str:
    """Attack the test samples of a recipe, round the examples if ``levels`` is given, judge and save them.

    Returns a summary for the terminal.
    """
    recipe, ((_, folder),) = session.recipe, folders(session.recipe, session.out, row)
    with imports_of(recipe), crafting_with(recipe.arithmetic, recipe.crafting, session.device, folder):
        columns = _attacked(session, row, attack, levels)
    write_arrays(path, columns)
    correct = share_text(Share.of(columns["label"] == columns["y"]))
    outside = int((~columns["inside"]).sum())
    summary = f"{correct} of {len(columns['y'])} are still classified correctly"
    if outside:
        summary += f"; {outside} points lie outside the threat and count as not fooled" + (
            " (rounding moved them there: the inputs themselves are not multiples of 1/levels)" if levels else ""
        )
    return f"{summary}\nsaved: {path}"


def _attacked(session: Session, row: Row, attack: str, levels: int | None) -> dict[str, NDArray[Any]]:
    config, source = session.recipe.evaluate, NETWORKS[row.table](session)
    samples, model = session.samples(config.samples), source.model(row.name, row.seed)
    chosen, _ = source.attack(attack, row.name, row.seed)
    rng, parts = Rng(config.seed).fork("evaluate"), []
    shards = torch.split(torch.arange(len(samples)), config.shard)
    for number, which in enumerate(shards):
        batch = samples.batch(which, session.device)
        change: Callable[[Tensor], Tensor] | None = None
        if levels is not None:
            change = partial(rounded, x=batch.x, levels=levels, threat=chosen.threat)
        x_adv, verdict = attack_and_judge(
            model, chosen, batch.x, Rows(batch.y, batch.index), rng=rng, judge_rng=rng.fork("judge"), change=change
        )
        columns = {"x": batch.x, "x_adv": x_adv, "y": batch.y, "index": batch.index, "label": verdict.label}
        columns |= {"fooled": verdict.fooled, "distance": verdict.distance, "inside": verdict.inside}
        parts.append({name: value.cpu().numpy() for name, value in columns.items()})
        session.progress(f"attack {row.name} with {attack}", number + 1, len(shards), "")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
