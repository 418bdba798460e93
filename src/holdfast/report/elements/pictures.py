"""Images inside the page: single pictures, grids of them, and galleries of nearest neighbors.

Images are arrays (c, h, w) with one or three channels, or (h, w), with values in [0, 1].
"""

import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as a data URL, its text alternative and the caption below it; ``wrong`` marks a misclassified one."""

    src: str
    alt: str
    caption: str
    wrong: bool = False


@dataclass(frozen=True, kw_only=True)
class ImageGrid:
    """Rows of pictures, each row with its name; the page folds a grid that is not ``opened``."""

    title: str
    rows: Mapping[str, Sequence[Picture]]
    opened: bool = False


def png(image: Array) -> str:
    """An image as the data URL of a PNG."""
    return _data_url(_pixels(image), "PNG")


def sheet(images: Array) -> tuple[str, int]:
    """Many small images of one size in one: its data URL and the number of images in each of its rows.

    Gray images are stored exactly; color images are thumbnails, compressed as WebP with small losses, because exact
    ones take about three times as much space.
    """
    pixels = [_pixels(image) for image in images]
    across = math.ceil(math.sqrt(len(pixels)))
    h, w, *channels = pixels[0].shape
    whole = np.zeros((math.ceil(len(pixels) / across) * h, across * w, *channels), np.uint8)
    for place, image in enumerate(pixels):
        row, column = divmod(place, across)
        whole[row * h : (row + 1) * h, column * w : (column + 1) * w] = image
    return _data_url(whole, "WEBP" if channels else "PNG"), across


def retrieval_grid(
    *,
    title: str,
    queries: Array,
    query_labels: Sequence[int],
    query_names: Sequence[str],
    neighbors: Array,
    neighbor_labels: Array,
    opened: bool = False,
) -> ImageGrid:
    """A gallery of the nearest neighbors of some queries, one row each.

    ``queries`` are q images (q, ...), ``query_labels`` their true classes, and ``query_names`` say what each is, such
    as "sample 12, clean" and "sample 12, PGD-40". ``neighbors`` are the k nearest gallery images of each, nearest
    first, (q, k, ...), and ``neighbor_labels`` (q, k) their classes. Neighbors of another class are marked as wrong.
    """
    shapes = [len(given) for given in (queries, query_labels, query_names, neighbors, neighbor_labels)]
    if len(set(shapes)) > 1 or neighbors.shape[:2] != neighbor_labels.shape:
        raise ValueError(
            f"a gallery has {shapes} queries, labels, names, lists of neighbors and of their labels; give one of each "
            "for every query, and a label for every neighbor"
        )
    rows = {}
    for query, y, name, images, labels in zip(
        queries, query_labels, query_names, neighbors, neighbor_labels, strict=True
    ):
        asked = Picture(src=png(query), alt=f"Query: {name}, class {y}", caption=f"query {y}")
        rows[name] = [asked, *(_neighbor(*pair, y, rank) for rank, pair in enumerate(zip(images, labels, strict=True)))]
    return ImageGrid(title=title, rows=rows, opened=opened)


def _neighbor(image: Array, label: int, y: int, rank: int) -> Picture:
    wrong = bool(label != y)
    return Picture(
        src=png(image),
        alt=f"Neighbor {rank + 1}, class {label}",
        caption=f"{label}{' ✗' * wrong}",
        wrong=wrong,
    )


def _pixels(image: Array) -> NDArray[np.uint8]:
    levels = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    flat = levels if levels.ndim == 2 else levels[0] if len(levels) == 1 else np.moveaxis(levels, 0, -1)
    return np.ascontiguousarray(flat)


def _data_url(pixels: NDArray[np.uint8], kind: str) -> str:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **({"quality": 85} if kind == "WEBP" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{b64encode(stream.getvalue()).decode()}"
