"""The named tabular sets, from small files in their format: scaled by the training samples, test not clipped."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.preprocessing import MinMaxScaler

from holdfast import data

NAMES = ["usps", "pendigits", "satimage", "splice", "letter", "segment"]
SIZES = {"usps": (7291, 2007, 256, 10), "pendigits": (7494, 3498, 16, 10), "satimage": (4435, 2000, 36, 6)}
SIZES |= {"splice": (1000, 2175, 60, 2), "letter": (15000, 5000, 16, 26), "segment": (1848, 462, 19, 7)}


def write(folder: Path, name: str, n: int, seed: int) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    x = np.random.RandomState(seed).normal(size=(n, 3)).round(3)
    lines = [f"{2 * (i % 3) - 1} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for i, row in enumerate(x)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return x


def whole(found: data.DataSet) -> torch.Tensor:
    return torch.cat([found.train.x, found.valid.x])[torch.cat([found.train.index, found.valid.index]).argsort()]


@pytest.mark.parametrize("name", NAMES[:-1])
@pytest.mark.parametrize("place", ["libsvm", "."])
def test_sets_with_a_test_file(tmp_path: Path, name: str, place: str) -> None:
    train, test = (write(tmp_path / place, file, n, n) for file, n in ((name, 30), (f"{name}.t", 40)))
    found = data.load(name, tmp_path, valid=6)
    scaler = MinMaxScaler().fit(train)
    np.testing.assert_allclose(whole(found), scaler.transform(train), atol=1e-6)
    np.testing.assert_allclose(found.test.x, scaler.transform(test), atol=1e-6)
    assert found.test.x.min() < 0
    assert found.test.x.max() > 1
    assert found.test.y.tolist() == [i % 3 for i in range(40)]
    assert (found.name, found.classes, len(found.valid)) == (name, ("-1", "1", "3"), 6)


def test_the_test_set_is_fixed_without_a_test_file(tmp_path: Path) -> None:
    x = write(tmp_path, "segment", 60, 0)
    found, again = (data.load("segment", tmp_path, valid=6, seed=seed) for seed in (0, 1))
    assert found.test.y.bincount().tolist() == [4, 4, 4]
    assert torch.equal(found.test.index, again.test.index)
    assert not torch.equal(found.valid.index, again.valid.index)
    kept = np.setdiff1d(np.arange(60), found.test.index)
    assert sorted(torch.cat([found.train.index, found.valid.index]).tolist()) == kept.tolist()
    scaler = MinMaxScaler().fit(x[kept])
    np.testing.assert_allclose(found.test.x, scaler.transform(x[found.test.index]), atol=1e-6)
    np.testing.assert_allclose(whole(found), scaler.transform(x[kept]), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    both = name if name == "segment" else rf"{name} and {name}\.t"
    with pytest.raises(FileNotFoundError, match=f"^{name} needs the files {both}, as text .*LIBSVM data page.*$"):
        data.load(name, tmp_path)


def test_a_test_label_missing_in_train_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "usps", 30, 0)
    (tmp_path / "usps.t").write_text("8 1:1\n")
    with pytest.raises(ValueError, match=r"line 1 of .*usps\.t has the label 8, which no training line has"):
        data.load("usps", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_published_sizes(name: str) -> None:
    top = os.environ.get("HOLDFAST_DATA")
    if not top or not (Path(top) / "libsvm" / name).is_file():
        pytest.skip(f"no libsvm/{name} under HOLDFAST_DATA")
    found = data.load(name)
    assert (len(found.train) + len(found.valid), len(found.test), *found.shape, len(found.classes)) == SIZES[name]
    assert whole(found).aminmax() == (0, 1)
