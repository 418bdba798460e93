import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_files
from sklearn.preprocessing import LabelEncoder, MinMaxScaler

from holdfast import data as named
from holdfast.data.readers import svm_text
from holdfast.data.sets import libsvm

TRAIN = "+1 1:0 2:5 4:-1\n-1 1:10 2:5 # a comment\n\n# only a comment\n+1 2:5 4:1\n-1 1:2.5e0 2:5\n"
TEST = "-1 1:20 3:4\n+1 1:-5 2:.5 4:0.5\n"


def write(folder, train=TRAIN, test=TEST):
    for name, content in (("set", train), ("set.t", test)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "set"


def load(path, **change):
    return libsvm.load(path, **{"valid": 1, "seed": 0, **change})


def whole(data):
    """Merge training and validation samples in the order of the file."""
    order = torch.cat([data.train.index, data.valid.index]).argsort()
    return torch.cat([data.train.x, data.valid.x])[order], torch.cat([data.train.y, data.valid.y])[order]


def test_values_are_scaled_by_the_training_file_and_clipped(tmp_path):
    data = load(write(tmp_path))
    x, y = whole(data)
    # ranges in train: 0..10, constant 5, absent, -1..1
    assert x.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0.5], [0, 0, 0, 1], [0.25, 0, 0, 0.5]]
    assert y.tolist() == [1, 0, 1, 0]
    assert data.test.x.tolist() == [[1, 0, 1, 0.5], [0, 0, 0, 0.75]]
    assert data.test.y.tolist() == [0, 1]
    assert (data.name, data.classes, data.shape) == ("libsvm:set", ("-1", "1"), (4,))
    assert x.dtype == torch.float32


@given(seed=st.integers(0, 10**6), n=st.integers(4, 12), width=st.integers(1, 6), classes=st.integers(1, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_values_and_labels_agree_with_scikit_learn(tmp_path, seed, n, width, classes):
    source = np.random.default_rng(seed)
    tables = [source.normal(0, 50, (m, width)).round(2) * (source.random((m, width)) < 0.7) for m in (n, 5)]
    labels = [source.permutation(np.arange(m) % classes) * 3 - 2 for m in (n, 5)]
    labels[1] = source.choice(labels[0], 5)
    for path, x, y in zip((tmp_path / "s", tmp_path / "s.t"), tables, labels, strict=True):
        dump_svmlight_file(x, y, str(path), zero_based=False)
        if not x.any():
            path.write_text(f"{y[0]} 1:1\n" * len(y))
    x_train, y_train, x_test, y_test = load_svmlight_files(
        [str(tmp_path / "s"), str(tmp_path / "s.t")], zero_based=False
    )
    scaler, encoder = MinMaxScaler().fit(x_train.toarray()), LabelEncoder().fit(y_train)
    data = load(tmp_path / "s")
    x, y = whole(data)
    assert x.numpy() == pytest.approx(scaler.transform(x_train.toarray()), abs=1e-6)
    assert data.test.x.numpy() == pytest.approx(scaler.transform(x_test.toarray()).clip(0, 1), abs=1e-6)
    assert y.tolist() == encoder.transform(y_train).tolist()
    assert data.test.y.tolist() == encoder.transform(y_test).tolist()
    assert data.classes == tuple(f"{label:.0f}" for label in encoder.classes_)


def test_labels_are_sorted_as_numbers(tmp_path):
    data = load(write(tmp_path, "10 1:1\n9 1:2\n-3 1:3\n9.0 1:3\n10 1:2\n", "9 1:1\n"))
    assert data.classes == ("-3", "9", "10")
    assert whole(data)[1].tolist() == [2, 1, 0, 1, 2]


def test_by_name(tmp_path):
    write(tmp_path)
    assert named.load("libsvm:set", tmp_path, valid=1).digest == load(tmp_path / "set").digest


BAD_LINES = {
    "index 0": ("1 0:3", "has the index 0, but indices start at 1"),
    "twice": ("1 2:3 2:4", "has the index 2 after 2; give each index once, in ascending order"),
    "unordered": ("1 1:1 7:3 4:4", "has the index 4 after 7; give each index once"),
    "nan": ("1 1:nan", "has '1:nan' where index:value with a finite number is needed"),
    "infinite": ("1 1:inf", "has '1:inf' where index:value"),
    "too large": ("1 1:1e999", "has a value beyond the largest float"),
    "no value": ("1 3:", "has '3:' where index:value"),
    "no index": ("1 :3", "has ':3' where index:value"),
    "no colon": ("1 3", "has '3' where index:value"),
    "negative index": ("1 -3:1", "has '-3:1' where index:value"),
    "index too long": ("1 9999999999:1", "has '9999999999:1' where index:value"),
    "query id": ("1 qid:3 1:2", "has 'qid:3' where index:value"),
    "underscore": ("1 1_0:2", "has '1_0:2' where index:value"),
    "hexadecimal": ("1 1:0x10", "has '1:0x10' where index:value"),
    "two colons": ("1 1:2:3", "has '1:2:3' where index:value"),
    "no label": ("1:2 2:3", "starts with '1:2' where a label, a whole number, is needed"),
    "word": ("cat 1:2", "starts with 'cat' where a label"),
    "regression": ("0.5 1:2", "starts with '0.5' where a label, a whole number"),
    "several labels": ("1,2 1:2", "starts with '1,2' where a label"),
    "label nan": ("nan 1:2", "starts with 'nan' where a label"),
    "noise": (b"\xff\xfe\x00 1:2", "starts with '.*' where a label"),
    "packed": (b"BZh91AY&SY\x88", "starts with 'BZh.*' where a label"),
    "other digits": ("1 \u0663:1".encode(), "has '.*' where index:value"),
}


@pytest.mark.parametrize("part", ["set", "set.t"])
@pytest.mark.parametrize("name", BAD_LINES)
def test_invalid_lines_are_refused_with_their_number(tmp_path, name, part):
    line, message = BAD_LINES[name]
    path = write(tmp_path)
    with (tmp_path / part).open("ab") as file:
        file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    number = {"set": 7, "set.t": 3}[part]
    with pytest.raises(ValueError, match=f"line {number} of {tmp_path / part} {message}") as refusal:
        load(path)
    assert "\n" not in str(refusal.value)


def test_a_test_label_missing_in_train_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"line 3 of .*set\.t has the label 2, which no training line has"):
        load(write(tmp_path, TRAIN, TEST + "2 1:1\n"))


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing\n"])
def test_a_file_without_lines_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"set has 0 lines and \d features but 1 to 134217728 values are held"):
        load(write(tmp_path, train=content))


def test_lines_without_features_are_refused(tmp_path):
    with pytest.raises(ValueError, match="set has 2 lines and 0 features"):
        load(write(tmp_path, "1\n2\n", "1\n"))


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_huge_index_does_not_take_memory(tmp_path, part):
    with pytest.raises(ValueError, match="has 5 lines and 999999999 features but 1 to 134217728 values are held"):
        load(write(tmp_path, **{"train": TRAIN + "1 1:2\n", part: "1 1:2\n" * 4 + "1 999999999:1\n"}))


def test_a_huge_file_is_not_read(tmp_path):
    path = write(tmp_path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="has 1099511627776 bytes but at most 2147483648 are read"):
        load(path)


def test_a_long_malicious_line_is_refused_quickly(tmp_path):
    with pytest.raises(ValueError, match="line 1 of"):
        load(write(tmp_path, "1 1:" + "1" * 500_000 + "x\n"))
    with pytest.raises(ValueError, match="line 1 of"):
        load(write(tmp_path, "1" + " 1:1" * 100_000 + " x\n"))


@pytest.mark.parametrize("gone", ["set", "set.t"])
def test_missing_files_are_named_with_instructions(tmp_path, gone):
    path = write(tmp_path)
    (tmp_path / gone).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"libsvm needs the files {path} and {path}.t, as text; download"
    ) as refusal:
        load(path)
    assert "bunzip2" in str(refusal.value)
    with pytest.raises(FileNotFoundError, match=r"libsvm needs the files PATH and PATH\.t"):
        load(None)


SIZES = {"usps": (7291, 2007, 256, 10), "pendigits": (7494, 3498, 16, 10), "satimage": (4435, 2000, 36, 6)}
SIZES |= {"splice": (1000, 2175, 60, 2), "letter": (15000, 5000, 16, 26)}


def real(name):
    top = os.environ.get("HOLDFAST_DATA")
    return bool(top) and (Path(top) / "libsvm" / name).is_file()


@pytest.mark.parametrize("name", SIZES)
def test_published_sets_of_arml(name):
    if not real(name):
        pytest.skip(f"no libsvm/{name} under HOLDFAST_DATA")
    data = named.load(f"libsvm:libsvm/{name}", valid=0.1)
    found = len(data.train) + len(data.valid), len(data.test), *data.shape, len(data.classes)
    assert found == SIZES[name]


def test_short_lines_take_little_memory(tmp_path):
    path = write(tmp_path, "1 1:1\n" * 5000 + "2 1:0\n", "1\n")  # 30 KB; one object per line would take 50 times that
    load(path)  # memory that is allocated once per process does not count
    tracemalloc.start()
    svm_text.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15 * path.stat().st_size


def test_too_many_lines_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(svm_text, "_LINES", 3)
    with pytest.raises(ValueError, match="set has 3 lines or more; give a smaller set"):
        load(write(tmp_path))


def test_an_endless_line_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(svm_text, "_LINE_BYTES", 1000)
    with pytest.raises(ValueError, match=r"line 2 of .*set has more than 1000 bytes"):
        load(write(tmp_path, "1 1:1\n1" + " 2:3" * 1000))


def test_a_range_beyond_the_largest_float_is_refused(tmp_path):
    with pytest.raises(ValueError, match="set has values of feature 2 farther apart than the largest float"):
        load(write(tmp_path, "1 1:1 2:1.7e308\n-1 1:2 2:-1.7e308\n1 2:1\n-1 2:1\n"))
