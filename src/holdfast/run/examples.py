"""Adversarial examples for other tools."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.contracts import Rows
from holdfast.crafting.arithmetic import arithmetic
from holdfast.evaluation.judge import judge
from holdfast.geometry import Threat
from holdfast.records.atomic import write_bytes
from holdfast.report.table import share_text
from holdfast.rng import Rng
from holdfast.run.study import Workshop
from holdfast.statistics import Share


def rounded(x_adv: Tensor, x: Tensor, levels: int, threat: Threat) -> Tensor:
    """Adversarial inputs as an image file would hold them: multiples of 1/levels, the nearest where that stays inside.

    A sample that the nearest levels carry out of the threat takes, number by number, the level on the side of x.
    """
    grid = x_adv * levels
    near, towards = grid.round() / levels, torch.where(x_adv > x, grid.floor(), grid.ceil()) / levels
    inside = threat.contains(near, x).reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(inside, near, towards)


def save_examples(shop: Workshop, method: str, seed: int, attack: str, levels: int | None, path: Path) -> str:
    """Attack the test samples of a recipe, judge what comes out (after rounding, if asked), save it; says what held."""
    plan, device = shop.recipe.evaluate, shop.fabric.device
    split = shop.samples()
    model, _ = shop.model(method, seed)
    chosen, _ = shop.attack(attack, method, seed)
    rng, parts = Rng(plan.seed).fork("evaluate"), []
    shards = torch.split(torch.arange(len(split)), plan.shard)
    for number, which in enumerate(shards):
        batch = split.batch(which, device)
        with arithmetic(shop.recipe.arithmetic):
            x_adv = chosen(model, batch.x, Rows(batch.y, batch.index), rng=rng)
        if levels is not None:
            x_adv = rounded(x_adv, batch.x, levels, chosen.threat)
        verdict = judge(model, batch.x, x_adv, batch.y, chosen.threat, rng.fork("judge"))
        columns = {"x": batch.x, "x_adv": x_adv, "y": batch.y, "index": batch.index, "label": verdict.label}
        columns |= {"fooled": verdict.fooled, "distance": verdict.distance, "inside": verdict.inside}
        parts.append({name: value.cpu().numpy() for name, value in columns.items()})
        shop.progress(f"attack {method} with {attack}", number + 1, len(shards), "")
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with io.BytesIO() as file:
        np.savez_compressed(file, allow_pickle=False, **joined)
        write_bytes(path, file.getvalue())
    held = share_text(Share.of(joined["label"] == joined["y"]))
    outside = int((~joined["inside"]).sum())
    said = f"{held} of {len(split)} are still classified right"
    if outside:
        said += f"; {outside} points lie outside the threat and count as not fooled" + (
            " (rounding moved them there: the inputs themselves are not multiples of 1/levels)" if levels else ""
        )
    return f"{said}\nsaved: {path}"
