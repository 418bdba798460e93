"""Invalid data: one sentence, exit code 2, nothing written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

RECIPE = """
seeds = [0]
threads = 1
[data]
name = "npz:data.npz"
valid = 6
[model]
encoder = "tiny"
channels = 1
width = 4
[threat]
norm = "linf"
eps = 0.1
[train]
epochs = 1
batch = 8
[methods.plain]
[attacks.noise]
[attacks.pgd]
steps = 2
"""


def arrays(**other: Any) -> dict[str, Any]:
    x = np.random.default_rng(0).random((48, 1, 4, 4), dtype=np.float32)
    y = np.arange(48) % 3
    return {"x_train": x[:36], "y_train": y[:36], "x_test": x[36:], "y_test": y[36:]} | other


def spoilt(name: str, value: float) -> dict[str, Any]:
    whole = arrays()
    whole[name] = whole[name].copy()
    whole[name].flat[5] = value
    return whole


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path


def test_valid_data_are_accepted(folder: Path, call: Any) -> None:
    np.savez(folder / "data.npz", **arrays())
    done = call("run", "mine.toml")
    assert done.code == 0, done.err
    assert (folder / "runs" / "mine" / "report.html").is_file()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (spoilt("x_train", np.nan), "NaN or infinite"),
        (spoilt("x_test", np.inf), "NaN or infinite"),
        (spoilt("x_train", 1.5), "but [0, 1] is allowed"),
        (spoilt("x_test", -0.1), "but [0, 1] is allowed"),
        (spoilt("y_test", 3), "has labels from 0 to 3 but with 3 classes 0 to 2 are allowed"),
        (spoilt("y_train", -1), "number the labels from 0 without gaps"),
        (spoilt("y_train", 7), "number the labels from 0 without gaps"),
        (arrays(y_test=np.zeros(12)), "has labels of type float64; give integers"),
        (arrays(y_test=np.arange(11) % 3), "12 samples but 11 labels"),
        (arrays(x_test=np.zeros((12, 1, 5, 5), np.float32)), "its test set has (1, 5, 5)"),
        (
            arrays(x_train=np.zeros((36, 16), np.float32), x_test=np.zeros((12, 16), np.float32)),
            "cannot be made for samples",
        ),
        (
            arrays(x_train=np.zeros((36, 3, 4, 4), np.float32), x_test=np.zeros((12, 1, 4, 4), np.float32)),
            "its test set has (1, 4, 4)",
        ),
        (arrays(x_train=np.zeros((36, 1, 4, 4), "U1")), "has type <U1"),
        ({"x_train": np.zeros(3)}, "lacks y_train, x_test, y_test"),
    ],
)
def test_bad_data_are_refused_before_anything_is_written(
    folder: Path, call: Any, content: dict[str, Any], expected: str
) -> None:
    np.savez(folder / "data.npz", **content)
    done = call("run", "mine.toml")
    assert done.code == 2
    assert expected in done.err
    assert done.err.startswith("holdfast: ")
    assert done.err.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == ["data.npz", "mine.toml"]


@pytest.mark.parametrize("content", [None, b"", b"no zip", b"PK\x03\x04 half"])
def test_files_of_another_format_are_refused(folder: Path, call: Any, content: bytes | None) -> None:
    if content is not None:
        (folder / "data.npz").write_bytes(content)
    done = call("train", "mine.toml")
    assert done.code == 2
    assert done.err.startswith("holdfast: ")
    assert "data.npz" in done.err
    assert done.err.count("\n") == 1
    assert not (folder / "runs").exists()


def test_model_trained_on_other_data_is_not_evaluated(folder: Path, call: Any) -> None:
    np.savez(folder / "data.npz", **arrays())
    assert call("train", "mine.toml").code == 0
    np.savez(folder / "data.npz", **spoilt("x_test", 0.25))
    done = call("evaluate", "mine.toml")
    assert done.code == 2
    assert "holds a model of other settings" in done.err


def test_normalization_for_another_number_of_channels_is_refused(folder: Path, call: Any) -> None:
    np.savez(folder / "data.npz", **arrays())
    done = call("run", "mine.toml", "--set", "model.mean=[0.1, 0.2, 0.3]", "--set", "model.std=[1, 1, 1]")
    assert done.code == 2
    assert "model 'tiny' cannot be made for samples of shape (1, 4, 4)" in done.err
    assert not (folder / "runs").exists()
