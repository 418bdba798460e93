import contextlib
import io
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.data.sets import npz


def arrays(kind=np.uint8):
    x = np.arange(12 * 4).reshape(12, 1, 2, 2) * 5
    x = x.astype(np.uint8) if kind == np.uint8 else (x / 255).astype(kind)
    y = np.arange(12) % 3
    return {"x_train": x, "y_train": y, "x_test": x[6:], "y_test": y[6:]}


def saved(folder, content, save=np.savez):
    path = folder / "mine.npz"
    save(path, **content)
    return path


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_saved(tmp_path, kind, save):
    given = arrays(kind)
    data = npz.load(saved(tmp_path, given, save), valid=3, seed=0)
    assert (data.name, data.shape, data.classes) == ("npz:mine.npz", (1, 2, 2), ("0", "1", "2"))
    assert (len(data.train), len(data.valid), len(data.test)) == (9, 3, 6)
    for split, name in ((data.train, "train"), (data.valid, "train"), (data.test, "test")):
        x, y = given[f"x_{name}"], given[f"y_{name}"]
        where = split.index.numpy()
        expected = x[where] / np.float32(255) if kind == np.uint8 else x[where]
        batch = split.batch(torch.arange(len(split)))
        assert batch.x.tolist() == expected.astype(np.float32).tolist()
        assert batch.y.tolist() == y[where].tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, ">i4", np.uint64])
def test_labels_may_have_any_integer_type(tmp_path, kind):
    given = arrays()
    given["y_train"] = given["y_train"].astype(kind)
    data = npz.load(saved(tmp_path, given), valid=3, seed=0)
    assert data.train.y.dtype == torch.int64
    assert torch.equal(data.train.y, data.train.index % 3)


def test_a_validation_set_in_the_file_is_used(tmp_path):
    given = arrays()
    given |= {"x_valid": given["x_train"][:5] // 2, "y_valid": given["y_train"][:5]}
    data = npz.load(saved(tmp_path, given), valid=3, seed=0)
    assert (len(data.train), len(data.valid)) == (12, 5)
    assert data.valid.x.tolist() == given["x_valid"].tolist()


def test_feature_vectors_are_accepted(tmp_path):
    given = {name: a.reshape(len(a), -1) if name[0] == "x" else a for name, a in arrays(np.float32).items()}
    assert npz.load(saved(tmp_path, given), valid=3, seed=0).shape == (4,)


def replaced(**change):
    return {**arrays(np.float32), **change}


X = arrays(np.float32)["x_train"]
BAD = {
    "NaN": (replaced(x_train=np.where(X == 0, np.nan, X)), "train set holds 1 values of x that are NaN or infinite"),
    "out of range": (replaced(x_test=255 * X[6:]), r"test set has x in \[\S+, 235\] but \[0, 1\] is allowed"),
    "lengths": (replaced(y_test=np.zeros(5, int)), "test set has 6 samples but 5 labels"),
    "gap in labels": (replaced(y_train=np.arange(12) % 3 * 2), "labels from 0 to 4 but with 3 classes 0 to 2"),
    "huge label": (replaced(y_train=np.arange(12) * 10**15), "labels from 0 to 11000000000000000 but"),
    "unseen test class": (replaced(y_test=np.full(6, 3)), "test set has labels from 3 to 3 but with 3 classes"),
    "negative": (replaced(y_train=np.arange(12) % 3 - 1), "labels from -1 to 1"),
    "beyond int64": (replaced(y_train=np.full(12, 2**64 - 1, np.uint64)), "labels from -1 to -1"),
    "float labels": (replaced(y_train=np.arange(12) % 3 / 2), "labels of type float64; give integers"),
    "scalar label": (replaced(y_train=np.array(1)), r"y of shape \(\)"),
    "empty": (replaced(x_train=X[:0], y_train=np.zeros(0, int)), "train set is empty"),
    "wide integers": (replaced(x_train=(255 * X).astype(np.uint16)), "x of type uint16; give uint8"),
    "words": (replaced(y_train=np.array(["cat"] * 12)), "y_train of .* has type <U3; give integers"),
    "complex": (replaced(x_train=X + 1j), "x_train of .* has type complex64; give"),
    "already scaled bytes": (replaced(x_train=(X > 0.5).astype(np.uint8)), "x_train of .* is uint8 but ends at 1"),
    "other shape": (replaced(x_test=X[6:, :, :1]), r"samples of shape \(1, 2, 2\) but its test set has \(1, 1, 2\)"),
    "valid without labels": (replaced(x_valid=X), "lacks y_valid and has x_train, y_train, x_test, y_test, x_valid"),
    "keys missing": ({"x_train": X, "labels": X}, "lacks y_train, x_test, y_test and has x_train;"),
    "no known key": ({"images": X}, "lacks x_train, y_train, x_test, y_test and has none that are known"),
    "objects": (replaced(y_train=np.array([0, "a", None] * 4, dtype=object)), "cannot be read as plain arrays"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_arrays_are_refused_in_one_sentence(tmp_path, name):
    content, message = BAD[name]
    path = saved(tmp_path, content)
    with pytest.raises(ValueError, match=message) as refusal:
        npz.load(path, valid=3, seed=0)
    assert "\n" not in str(refusal.value)


class Trap:
    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_pickles_are_never_loaded(tmp_path):
    path = saved(tmp_path, replaced(y_train=np.array([Trap()] * 12, dtype=object)))
    with pytest.raises(ValueError, match=r"cannot be read as plain arrays .*allow_pickle=False"):
        npz.load(path, valid=3, seed=0)
    np.save(tmp_path / "one.npy", np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match=r"cannot be read as plain arrays .*a single array"):
        npz.load(tmp_path / "one.npy", valid=3, seed=0)
    assert not Trap.sprung


def test_headers_that_claim_too_much_are_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as file:
        file.writestr("x_train.npy", header.getvalue())
    with pytest.raises(ValueError, match="cannot be read as plain arrays"):
        npz.load(tmp_path / "liar.npz", valid=3, seed=0)


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(ValueError, match="it holds a single array without a name"):
        npz.load(tmp_path / "one.npy", valid=3, seed=0)


@given(where=st.floats(0, 1), change=st.integers(1, 255), cut=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_damaged_file_gives_a_value_error_or_correct_values(tmp_path, where, change, cut):
    path = saved(tmp_path, arrays(), np.savez_compressed)
    content = bytearray(path.read_bytes())
    place = int(where * (len(content) - 1))
    content[place] ^= change
    path.write_bytes(content[:place] if cut else content)
    with contextlib.suppress(ValueError):
        assert npz.load(path, valid=3, seed=0).test.x.tolist() == arrays()["x_test"].tolist()


@pytest.mark.parametrize("name", ["absent.npz", ""])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"there is no \.npz file at .*; name one as npz:PATH"):
        npz.load(tmp_path / name, valid=3, seed=0)


def test_a_missing_path_is_refused():
    with pytest.raises(FileNotFoundError, match="name one as npz:PATH"):
        npz.load(None, valid=3, seed=0)


def liar(folder, shape, body, kind="<f8", name="x_train.npy"):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(folder / "liar.npz", "w") as file:
        file.writestr(name, header.getvalue() + body)
    return folder / "liar.npz"


@pytest.mark.parametrize("shape", [(1 << 30,), (1 << 32, 1 << 32), (-1,), (3,)])
def test_memory_is_not_allocated_from_the_header(tmp_path, shape):
    path = liar(tmp_path, shape, bytes(16))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x_train\.npy promises -?\d+ bytes but holds 16") as refusal:
        npz.load(path, valid=3, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(refusal.value)
    assert peak < 5_000_000


def test_a_large_archive_is_not_decompressed(tmp_path, monkeypatch):
    path = saved(tmp_path, arrays(), np.savez_compressed)
    monkeypatch.setattr("holdfast.data.readers.npz._BYTES", 300)
    monkeypatch.setattr("holdfast.data.readers.npz._array", None)
    with pytest.raises(ValueError, match=r"it unpacks to \d+ bytes but at most 300 are held in memory"):
        npz.load(path, valid=3, seed=0)


def test_other_members_of_the_archive_are_ignored(tmp_path):
    path = saved(tmp_path, {name: array for name, array in arrays().items() if name != "y_test"})
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("y_test", b"just bytes")
    with pytest.raises(ValueError, match="lacks y_test and has x_train, y_train, x_test"):
        npz.load(path, valid=3, seed=0)


@pytest.mark.parametrize("kind", ["V8", "u1,u1", "M8[s]", "S3"])
def test_labels_of_other_types_are_refused(tmp_path, kind):
    with pytest.raises(ValueError, match=r"y_train of .* has type .*; give integers"):
        npz.load(saved(tmp_path, replaced(y_train=np.zeros(12, kind))), valid=3, seed=0)


def test_load_test(tmp_path):
    given = {name: array for name, array in arrays().items() if name.endswith("test")}
    found = npz.load_test(saved(tmp_path, given))
    assert (found.name, found.classes) == ("npz:mine.npz", None)
    assert found.test.x.tolist() == given["x_test"].tolist()
    assert found.test.y.tolist() == given["y_test"].tolist()
    some = npz.load_test(saved(tmp_path, given), samples=3)
    assert some.test.index.tolist() == [0, 2, 4]
    assert some.test.x.tolist() == given["x_test"][[0, 2, 4]].tolist()
    assert some.digest != found.digest
    assert npz.load_test(saved(tmp_path, arrays())).classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": np.full((6, 1, 2, 2), np.nan)}, "holds 24 values of x that are NaN"),
        ({"y_test": np.arange(5)}, "6 samples but 5 labels"),
        ({"y_test": np.arange(6) - 1}, "labels from -1 to 4"),
        ({"y_train": np.arange(12) % 3, "y_test": np.full(6, 3)}, "labels from 3 to 3 but with 3 classes"),
        ({"y_train": np.array([None] * 12)}, "cannot be read as plain arrays"),
    ],
)
def test_load_test_refuses_invalid_arrays(tmp_path, change, message):
    given = {name: array for name, array in arrays().items() if name.endswith("test")}
    with pytest.raises(ValueError, match=message):
        npz.load_test(saved(tmp_path, given | change))
    with pytest.raises(ValueError, match="lacks y_test and has x_test"):
        npz.load_test(saved(tmp_path, {"x_test": given["x_test"]}))
