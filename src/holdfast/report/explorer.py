"""A map of features whose points move along an attack, with the image of the point under the pointer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.records.records import Array
from holdfast.report.analysis import Analysis
from holdfast.report.elements.figures import literal, palette
from holdfast.report.elements.pictures import sheet
from holdfast.report.study import Run, analysis_of


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """The data of a map for explorer.js, with a text alternative and a caption that says what good looks like.

    ``data`` holds the samples (index, class, sheet of clean images) and for each model the attack, the steps that are
    shown, and per step the positions and predicted classes of the samples.
    """

    title: str
    alt: str
    caption: str
    models: Sequence[str]
    data: dict[str, Any]


def explorer(runs: dict[str, Run]) -> Explorer | None:
    """The maps of these models, by the titles of their runs; None if there is none."""
    known = {title: run for title, run in runs.items() if analysis_of(run).places is not None}
    if not known:
        return None
    first = analysis_of(next(iter(known.values())))
    shares = ", ".join(f"{title} {100 * analysis_of(run).faithful.value:.0f} %" for title, run in known.items())
    caption = (
        "t-SNE of the features of clean samples (cosine distance, seed shown with each map); points under attack are "
        "placed on the finished map. Colors are true classes, crosses are misclassified; the line is the way of the "
        "chosen sample. Good: points stay with their class as the slider moves, and crosses lie at the edge of the "
        "false class or outside. Distances between far groups mean nothing. "
        f"Samples that keep their nearest neighbor on the map: {shares}."
    )
    classes = sorted(set(first.followed.columns["y"].tolist()))
    return Explorer(
        title="Map of features along the attack",
        alt=f"Scatter charts of features before and after an attack for {', '.join(known)}; a slider moves the points",
        caption=caption,
        models=list(known),
        data={
            "classes": classes,
            "colors": dict(zip(map(str, classes), palette(len(classes)), strict=True)),
            "index": first.followed.columns["index"].tolist(),
            "y": first.followed.columns["y"].tolist(),
            "clean": _sheet(first.followed.arrays.get("clean:path")),
            "models": [_model(title, analysis_of(run), run.seed) for title, run in known.items()],
        },
    )


def _model(title: str, of: Analysis, seed: int) -> dict[str, Any]:
    places, frames, path = of.places, of.facts["path"]["frames"], of.facts["path"]
    assert places is not None
    labels = of.followed.arrays["label:path"][:, frames]
    return {
        "name": literal(title),
        "seed": seed,
        "attack": path["attack"],
        "steps": [path["steps"][frame] for frame in frames],
        "x": [_rounded(places[:, frame, 0]) for frame in range(len(frames))],
        "y": [_rounded(places[:, frame, 1]) for frame in range(len(frames))],
        "labels": labels.T.tolist(),
        "moved": _sheet(of.followed.arrays.get("moved:path")),
    }


def _rounded(values: Array) -> list[float]:
    return np.round(values.astype(np.float64), 2).tolist()  # type: ignore[no-any-return]


def _sheet(images: Array | None) -> dict[str, Any] | None:
    """Many images as one; None where samples are no images."""
    if images is None or images.ndim != 4 or not len(images):
        return None
    src, across = sheet(images / 255)
    return {"src": src, "across": across, "width": images.shape[3], "height": images.shape[2]}
