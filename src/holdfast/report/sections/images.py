"""Clean images, adversarial images and their difference, as PNG images inside the page.

Records hold them as arrays: ``shown`` (k, values of the index column), ``clean`` (k, c, h, w) in [0, 1] and, for
each attack, ``adversarial:<norm>:<name>`` of the same shape.
"""

import numpy as np

from holdfast.records.records import Array, Records, array_name, column_name
from holdfast.report.elements.format import attack_text
from holdfast.report.elements.pictures import ImageGrid, Picture, png
from holdfast.report.page import Section
from holdfast.report.study import Run, Study

ORDER = 60

_MOST_IMAGES = 8
_NOTE = (
    "Below each image is the prediction of the model; ✗ marks a wrong one. In the difference gray is unchanged, black "
    "and white are the stated change of a pixel. A sample that is misclassified without attack needs no change."
)


def section(study: Study) -> Section | None:
    """The stored images of each method under each attack that stored them."""
    grids = image_grids(study)
    return Section(id="images", title="Images", sentences=[_NOTE], images=grids) if grids else None


def image_grids(study: Study) -> list[ImageGrid]:
    """The images of the first seed of each method that stored some, one grid for each attack; the first is open."""
    found: list[ImageGrid] = []
    for runs in study.attacked().values():
        run = next((run for run in runs if _has_images(run.records)), None)
        if run is not None:
            arrays = run.records.arrays
            stored = [name for name, a in run.records.attacks.items() if array_name(a.norm, name) in arrays]
            found += [_grid(run, attack, opened=not found and attack == stored[0]) for attack in stored]
    return found


def difference(clean: Array, adversarial: Array, scale: float) -> Array:
    """The change around mid-gray: 0.5 for an unchanged pixel, black at ``-scale``, white at ``scale``."""
    return np.asarray(0.5 + (adversarial.astype(np.float64) - clean) / (2 * scale))


def _has_images(records: Records) -> bool:
    if not {"clean", "shown"} <= records.arrays.keys():
        return False
    clean = records.arrays["clean"]
    return clean.ndim == 3 or (clean.ndim == 4 and clean.shape[1] in (1, 3))


def _grid(run: Run, attack: str, opened: bool) -> ImageGrid:
    records, norm = run.records, run.records.attacks[attack].norm
    clean = records.arrays["clean"][:_MOST_IMAGES]
    moved = records.arrays[array_name(norm, attack)][:_MOST_IMAGES]
    scale = float(np.abs(moved.astype(np.float64) - clean).max(initial=0)) or 1.0
    shown = [_row(records, int(index)) for index in records.arrays["shown"][: len(clean)]]
    after = column_name("label", norm, attack)
    rows = {
        "clean": [_picture(records, row, x, "label") for row, x in zip(shown, clean, strict=True)],
        "adversarial": [_picture(records, row, x, after) for row, x in zip(shown, moved, strict=True)],
        "difference": [
            _picture(records, row, difference(before, x, scale))
            for row, before, x in zip(shown, clean, moved, strict=True)
        ],
    }
    who = run.label if run.trained else run.title
    title = f"{who} under {attack_text(attack)}: difference from -{scale:.3g} (black) to +{scale:.3g} (white)"
    return ImageGrid(title=title, rows=rows, opened=opened)


def _picture(records: Records, row: int, image: Array, column: str = "") -> Picture:
    """An image with the prediction in a column below it, or with its class if it is not an input of the model."""
    index, y = records.columns["index"][row], records.columns["y"][row]
    if not column:
        return Picture(src=png(image), alt=f"Change of sample {index} around mid-gray", caption=f"class {y}")
    label = records.columns[column][row]
    wrong, kind = bool(label != y), "clean" if column == "label" else "adversarial"
    alt = f"Sample {index} of class {y}, {kind}"
    return Picture(src=png(image), alt=alt, caption=f"{label}{' ✗' * wrong}", wrong=wrong)


def _row(records: Records, index: int) -> int:
    found = np.flatnonzero(records.columns["index"] == index)
    if not len(found):
        raise ValueError(f"an image belongs to sample {index}, which no record has; keep images of recorded samples")
    return int(found[0])
