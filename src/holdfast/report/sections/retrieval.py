"""The nearest training images of some samples, before and after the attack."""

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.evaluation.analyze import NATURAL
from holdfast.records.records import Array
from holdfast.report.analysis import Analysis
from holdfast.report.elements.pictures import ImageGrid, retrieval_grid
from holdfast.report.page import Section
from holdfast.report.study import Study, analysis_of

ORDER = 34

_QUERIES, _NEIGHBORS = 4, 8
_NOTE = (
    "The training images with the nearest features, nearest first, of some samples without attack and of the same "
    "samples after it; below each is its class, ✗ marks a false one. Samples that every model classifies correctly "
    "without attack come first. Good: the attack changes none of the classes."
)


def section(study: Study) -> Section | None:
    """A gallery for the first seed of each model; the first is open."""
    models = {title: analysis_of(runs[0]) for title, runs in study.analyzed().items()}
    rows = _rows(list(models.values()))
    grids = [grid for title, of in models.items() for grid in _grid(title, of, rows)]
    opened = [ImageGrid(title=grid.title, rows=grid.rows, opened=not at) for at, grid in enumerate(grids)]
    return Section(id="retrieval", title="Nearest training images", sentences=[_NOTE], images=opened) if grids else None


def _rows(models: Sequence[Analysis]) -> list[int]:
    """The samples that are shown, those first that every model classifies correctly without attack."""
    known = min((len(of.samples.arrays[f"images:{NATURAL}"]) for of in models), default=0)
    wrong = [any(not of.samples.correct[row] for of in models) for row in range(known)]
    return sorted(sorted(range(known), key=lambda row: wrong[row])[:_QUERIES], key=lambda row: (wrong[row], row))


def _grid(title: str, of: Analysis, rows: Sequence[int]) -> Iterator[ImageGrid]:
    attack, arrays = of.under[-1].name, of.samples.arrays
    if arrays[f"images:{NATURAL}"].ndim != 4:
        return
    index, kinds = of.samples.columns["index"], {NATURAL: "clean", attack: attack}
    pairs = [(row, kind) for row in rows for kind in kinds]
    yield retrieval_grid(
        title=f"{title}: nearest training images, clean and under {attack}",
        queries=_levels(np.stack([arrays[f"images:{kind}"][row] for row, kind in pairs])),
        query_labels=[int(of.y[row]) for row, _ in pairs],
        query_names=[f"sample {index[row]}, {kinds[kind]}" for row, kind in pairs],
        neighbors=_levels(np.stack([arrays[f"retrieved:place:{kind}"][row][:_NEIGHBORS] for row, kind in pairs])),
        neighbor_labels=np.stack([arrays[f"retrieved_y:place:{kind}"][row][:_NEIGHBORS] for row, kind in pairs]),
    )


def _levels(images: Array) -> Array:
    return np.asarray(images / 255)
