import io
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from holdfast.records.records import Records
from holdfast.report.images import difference, png, strips


def pixels(address: str) -> np.ndarray:
    head, data = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(b64decode(data))))


@pytest.mark.parametrize("shape", [(8, 9), (1, 8, 9), (3, 8, 9)])
def test_png_holds_the_pixels(shape: tuple[int, ...]) -> None:
    levels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    expected = levels if len(shape) == 2 else levels[0] if shape[0] == 1 else levels.transpose(1, 2, 0)
    assert np.array_equal(pixels(png(levels / 255)), expected)


def test_the_difference_is_grey_where_nothing_moved_and_spans_black_to_white() -> None:
    clean = np.full((1, 1, 3), 0.5, np.float32)
    moved = clean + np.array([-0.25, 0, 0.25], np.float32)
    assert difference(clean, moved, 0.25).tolist() == [[[0.0, 0.5, 1.0]]]


def test_strips_show_labels_before_and_after(study) -> None:
    found = strips(study)
    assert [(s.name, s.seed, s.attack) for s in found] == [
        (name, 0, attack) for name in ("Plain", "AT", "TLA") for attack in ("PGD-40", "FGSM")
    ]
    records, strip = study.runs[0].records, found[0]
    for i, picture in enumerate(strip.pictures):
        assert picture.index == records.columns["index"][i]
        assert picture.label == records.columns["label"][i]
        assert picture.label_adversarial == records.columns["label:linf:PGD-40"][i]
        assert np.array_equal(pixels(picture.clean), np.rint(255 * records.arrays["clean"][i, 0]))
    moved = np.abs(records.arrays["adversarial:linf:PGD-40"].astype(float) - records.arrays["clean"])
    assert strip.scale == moved.max()


def _with_arrays(run, arrays):
    return replace(run, records=Records(run.records.columns, run.records.facts, arrays))


def test_no_images_or_no_pictures_no_strip(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    assert strips(make_study([_with_arrays(run, {})])) == []
    tabular = {"shown": np.arange(2), "clean": np.zeros((2, 5)), "adversarial:linf:FGSM": np.zeros((2, 5))}
    assert strips(make_study([_with_arrays(run, tabular)])) == []


def test_an_image_of_no_record_is_refused(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    arrays = dict(run.records.arrays) | {"shown": np.arange(6) + 1000}
    with pytest.raises(ValueError, match="sample 1000"):
        strips(make_study([_with_arrays(run, arrays)]))


def test_unmoved_images_have_a_grey_difference(make_run, make_study) -> None:
    run = make_run("a", 0, n=9)
    arrays = {key: run.records.arrays[key] for key in ("shown", "clean")}
    arrays["adversarial:linf:FGSM"] = arrays["clean"]
    (strip,) = strips(make_study([_with_arrays(run, arrays)]))
    assert set(pixels(strip.pictures[0].difference).ravel()) == {128}
