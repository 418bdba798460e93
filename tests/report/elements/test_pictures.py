"""Sheets of thumbnails and galleries of neighbors."""

import io
from base64 import b64decode

import numpy as np
import pytest
from PIL import Image

from holdfast.report.elements.pictures import retrieval_grid, sheet


def decoded(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(b64decode(address.partition(",")[2]))))


def test_a_sheet_holds_every_image_at_its_place() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 1, 4, 5)) / 255
    src, across = sheet(images)
    pixels = decoded(src)
    assert across == 3
    assert pixels.shape == (3 * 4, 3 * 5)
    for place, image in enumerate(images):
        top, left = 4 * (place // across), 5 * (place % across)
        np.testing.assert_array_equal(pixels[top : top + 4, left : left + 5], np.rint(255 * image[0]))


def test_a_color_sheet_is_close_and_small() -> None:
    smooth = np.linspace(0, 1, 32)[:, None] * np.linspace(0.5, 1, 32)
    images = np.stack([np.stack([smooth * (c + 1) / (k + 3) for c in range(3)]) for k in range(30)])
    src, across = sheet(images)
    assert src.startswith("data:image/webp;base64,")
    assert across == 6
    first = decoded(src)[:32, :32].astype(float) / 255
    assert np.abs(first - np.moveaxis(images[0], 0, -1)).mean() < 0.02
    assert len(src) < 30 * 3 * 32 * 32


def test_a_gallery_marks_neighbors_of_another_class() -> None:
    grid = retrieval_grid(
        title="Nearest training samples",
        queries=np.zeros((2, 4, 4)),
        query_labels=[3, 5],
        query_names=["sample 7, clean", "sample 7, PGD-40"],
        neighbors=np.zeros((2, 3, 4, 4)),
        neighbor_labels=np.array([[3, 3, 3], [5, 8, 5]]),
    )
    assert list(grid.rows) == ["sample 7, clean", "sample 7, PGD-40"]
    assert [picture.wrong for picture in grid.rows["sample 7, PGD-40"]] == [False, False, True, False]
    assert grid.rows["sample 7, PGD-40"][2].alt == "Neighbor 2, class 8"


def test_a_gallery_needs_a_label_for_every_neighbor() -> None:
    with pytest.raises(ValueError, match="give one of each for every query"):
        retrieval_grid(
            title="",
            queries=np.zeros((1, 4, 4)),
            query_labels=[3],
            query_names=["one"],
            neighbors=np.zeros((1, 3, 4, 4)),
            neighbor_labels=np.zeros((1, 2)),
        )
