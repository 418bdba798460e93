"""Images in the page hold the pixels and predictions of the records."""

import io
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from holdfast.records.records import Records
from holdfast.report.elements.pictures import png
from holdfast.report.sections.images import difference, image_grids


def pixels(address: str) -> np.ndarray:
    head, data = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(b64decode(data))))


@pytest.mark.parametrize("shape", [(8, 9), (1, 8, 9), (3, 8, 9)])
def test_png_holds_the_pixels(shape: tuple[int, ...]) -> None:
    levels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    expected = levels if len(shape) == 2 else levels[0] if shape[0] == 1 else levels.transpose(1, 2, 0)
    assert np.array_equal(pixels(png(levels / 255)), expected)


def test_the_difference_is_gray_for_unchanged_pixels_and_spans_black_to_white() -> None:
    clean = np.full((1, 1, 3), 0.5, np.float32)
    moved = clean + np.array([-0.25, 0, 0.25], np.float32)
    assert difference(clean, moved, 0.25).tolist() == [[[0.0, 0.5, 1.0]]]


def test_grids_show_predictions_before_and_after(study) -> None:
    found = image_grids(study)
    assert [grid.title.partition(":")[0] for grid in found] == [
        f"{name} (seed 0) under {attack}" for name in ("Plain", "AT", "TLA") for attack in ("PGD-40", "FGSM")
    ]
    assert [grid.opened for grid in found] == [True] + [False] * 5
    records, grid = study.runs[0].records, found[0]
    y, arrays = records.columns["y"], records.arrays
    for row, column in (("clean", "label"), ("adversarial", "label:linf:PGD-40")):
        assert len(grid.rows[row]) == 6
        for i, picture in enumerate(grid.rows[row]):
            label = records.columns[column][i]
            assert picture.alt == f"Sample {records.columns['index'][i]} of class {y[i]}, {row}"
            assert picture.caption == (str(label) if label == y[i] else f"{label} ✗")
            assert picture.wrong == (label != y[i])
    moved = arrays["adversarial:linf:PGD-40"].astype(float)
    for i, picture in enumerate(grid.rows["clean"]):
        assert np.array_equal(pixels(picture.src), np.rint(255 * arrays["clean"][i, 0]))
        assert np.array_equal(pixels(grid.rows["adversarial"][i].src), np.rint(255 * moved[i, 0]))
    scale = np.abs(moved - arrays["clean"]).max()
    assert grid.title.endswith(f": difference from -{scale:.3g} (black) to +{scale:.3g} (white)")
    shown = np.stack([pixels(picture.src) for picture in grid.rows["difference"]])
    assert np.array_equal(shown, np.rint(255 * difference(arrays["clean"], moved, scale)[:, 0]))
    assert {shown.min(), shown.max()} & {0, 255}  # the largest change of a pixel is black or white


def _with_arrays(run, arrays):
    return replace(run, records=Records(run.records.columns, run.records.facts, arrays))


def test_records_without_images_give_no_grid(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    assert image_grids(make_study([_with_arrays(run, {})])) == []
    tabular = {"shown": np.arange(2), "clean": np.zeros((2, 5)), "adversarial:linf:FGSM": np.zeros((2, 5))}
    assert image_grids(make_study([_with_arrays(run, tabular)])) == []


def test_an_image_without_a_record_is_refused(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    arrays = dict(run.records.arrays) | {"shown": np.arange(6) + 1000}
    with pytest.raises(ValueError, match="sample 1000"):
        image_grids(make_study([_with_arrays(run, arrays)]))


def test_unchanged_images_have_a_gray_difference(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    arrays = {key: run.records.arrays[key] for key in ("shown", "clean")}
    arrays["adversarial:linf:FGSM"] = arrays["clean"]
    (grid,) = image_grids(make_study([_with_arrays(run, arrays)]))
    assert set(pixels(grid.rows["difference"][0].src).ravel()) == {128}
