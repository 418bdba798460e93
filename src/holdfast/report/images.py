"""Clean images, adversarial ones and their difference, as small PNG pictures inside the page.

Records bring them as arrays: ``shown`` (k, the values of the index column), ``clean`` (k, c, h, w) in [0, 1] and, for
each attack, ``adversarial:<norm>:<name>`` of the same shape.
"""

from __future__ import annotations

import io
from base64 import b64encode
from dataclasses import dataclass

import numpy as np
from PIL import Image

from holdfast.records.records import Array, Records, array_name, column_name
from holdfast.report.study import Run, Study

_MOST_IMAGES = 8


@dataclass(frozen=True)
class Picture:
    """One sample: three PNG data addresses, the label, and what the model says before and after."""

    index: int
    clean: str
    adversarial: str
    difference: str
    y: int
    label: int
    label_adversarial: int


@dataclass(frozen=True)
class Strip:
    """Samples of one run under one attack; the difference runs from black at ``-scale`` to white at ``scale``."""

    name: str
    seed: int
    attack: str
    scale: float
    pictures: tuple[Picture, ...]


def strips(study: Study) -> list[Strip]:
    """For each name, its first seed that kept images, under every attack that kept them."""
    found = []
    for runs in study.by_name().values():
        run = next((run for run in runs if _has_images(run.records)), None)
        if run is not None:
            arrays = run.records.arrays
            kept = [name for name, a in run.records.attacks.items() if array_name(a.norm, name) in arrays]
            found += [_strip(run, attack) for attack in kept]
    return found


def png(image: Array) -> str:
    """An image (c, h, w) or (h, w) in [0, 1] as the data address of a PNG."""
    levels = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    flat = levels if levels.ndim == 2 else levels[0] if len(levels) == 1 else np.moveaxis(levels, 0, -1)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(flat)).save(stream, "PNG")
    return f"data:image/png;base64,{b64encode(stream.getvalue()).decode()}"


def difference(clean: Array, adversarial: Array, scale: float) -> Array:
    """The change around mid-grey: 0.5 where nothing moved, black at ``-scale``, white at ``scale``."""
    return np.asarray(0.5 + (adversarial.astype(np.float64) - clean) / (2 * scale))


def _has_images(records: Records) -> bool:
    if not {"clean", "shown"} <= records.arrays.keys():
        return False
    clean = records.arrays["clean"]
    return clean.ndim == 3 or (clean.ndim == 4 and clean.shape[1] in (1, 3))


def _strip(run: Run, attack: str) -> Strip:
    arrays = run.records.arrays
    clean = arrays["clean"][:_MOST_IMAGES]
    adversarial = arrays[array_name(run.records.attacks[attack].norm, attack)][:_MOST_IMAGES]
    scale = float(np.abs(adversarial.astype(np.float64) - clean).max(initial=0)) or 1.0
    rows = [_row(run.records, int(index)) for index in arrays["shown"][: len(clean)]]
    pictures = [_picture(run.records, attack, row, clean[i], adversarial[i], scale) for i, row in enumerate(rows)]
    return Strip(run.name, run.seed, attack, scale, tuple(pictures))


def _row(records: Records, index: int) -> int:
    found = np.flatnonzero(records.columns["index"] == index)
    if not len(found):
        raise ValueError(f"an image belongs to sample {index}, which no record has; keep images of recorded samples")
    return int(found[0])


def _picture(records: Records, attack: str, at: int, clean: Array, adversarial: Array, scale: float) -> Picture:
    columns = records.columns
    after = columns[column_name("label", records.attacks[attack].norm, attack)]
    return Picture(
        index=int(columns["index"][at]),
        clean=png(clean),
        adversarial=png(adversarial),
        difference=png(difference(clean, adversarial, scale)),
        y=int(columns["y"][at]),
        label=int(columns["label"][at]),
        label_adversarial=int(after[at]),
    )
