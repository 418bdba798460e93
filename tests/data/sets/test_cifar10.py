import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.data.sets import cifar10
from pickles import Payload, python2

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
N = 20


def pixels(batch):
    """Images that encode their origin: red is the batch, green the image, blue the column."""
    x = np.zeros((N, 3, 32, 32), np.uint8)
    x[:, 0] = batch
    x[:, 1] = np.arange(N)[:, None, None]
    x[:, 2] = np.arange(32)
    return x.reshape(N, 3072)


def labels(batch):
    return [(batch + i) % 10 for i in range(N)]


def binary(batch):
    return np.concatenate([np.array(labels(batch), np.uint8)[:, None], pixels(batch)], axis=1).tobytes()


def python(batch):
    return python2(pixels(batch), labels(batch))


FORMS = {"bin": (binary, ".bin"), "py": (python, "")}


def lay_out(folder, form="bin", changed=None):
    make, suffix = FORMS[form]
    folder.mkdir(parents=True, exist_ok=True)
    for batch, name in enumerate(BATCHES):
        (folder / f"{name}{suffix}").write_bytes(make(batch))
    for name, content in (changed or {}).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["cifar-10-batches-{}", "cifar10", "."])
def test_images_labels_and_positions_stay_together(tmp_path, form, place):
    lay_out(tmp_path / place.format(form), form)
    data = cifar10.load(tmp_path, valid=20, seed=3, verify=False)
    assert (data.name, data.shape, len(data.classes), data.classes[3]) == ("cifar10", (3, 32, 32), 10, "cat")
    assert (len(data.train), len(data.valid), len(data.test)) == (80, 20, 20)
    assert data.valid.y.bincount().tolist() == [2] * 10
    for split, first in ((data.train, 0), (data.valid, 0), (data.test, 5)):
        batch, i = first + split.index // N, split.index % N
        assert split.x.dtype == torch.uint8
        assert torch.equal(split.y, (batch + i) % 10)
        assert torch.equal(split.x[:, 0].long(), batch[:, None, None].expand(-1, 32, 32))
        assert torch.equal(split.x[:, 1].long(), i[:, None, None].expand(-1, 32, 32))
        assert torch.equal(split.x[:, 2].long(), torch.arange(32).expand(len(split), 32, 32))


def test_binary_and_python_batches_give_the_same_data(tmp_path):
    one, two = (cifar10.load(lay_out(tmp_path / form, form), valid=20, seed=0, verify=False) for form in ("bin", "py"))
    assert one.digest == two.digest


def test_a_batch_pickled_by_python_3_is_read(tmp_path):
    again = pickle.dumps({b"data": np.asfortranarray(pixels(5)), b"labels": labels(5)})
    lay_out(tmp_path, "py", {"test_batch": again})
    assert torch.equal(
        cifar10.load(tmp_path, valid=20, seed=0, verify=False).test.x,
        torch.from_numpy(pixels(5).reshape(-1, 3, 32, 32)),
    )


@pytest.mark.parametrize("form", FORMS)
def test_verify_accepts_only_the_published_files(tmp_path, monkeypatch, form):
    lay_out(tmp_path, form)
    digest = {"bin": hashlib.sha256, "py": hashlib.md5}[form]
    files = [f"{name}{FORMS[form][1]}" for name in BATCHES]
    known = {name: digest((tmp_path / name).read_bytes()).hexdigest() for name in files}
    monkeypatch.setattr(cifar10, "_PUBLISHED", known)
    assert len(cifar10.load(tmp_path, valid=20, seed=0).test) == N
    for name in (files[0], files[-1]):
        good = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(good.replace(b"\x1f", b"\x1e", 1))
        with pytest.raises(ValueError, match=rf"{name} is not the published file: its \S+ is .*or say verify = false"):
            cifar10.load(tmp_path, valid=20, seed=0)
        (tmp_path / name).write_bytes(good)


@pytest.mark.parametrize("form", FORMS)
def test_verify_refuses_other_files(tmp_path, form):
    with pytest.raises(ValueError, match=r"data_batch_1.* is not the published file"):
        cifar10.load(lay_out(tmp_path, form), valid=20, seed=0)


def test_a_payload_is_refused_and_not_executed(tmp_path):
    sentinel = tmp_path / "ran"
    trap = pickle.dumps({"data": pixels(0), "labels": labels(0), "x": Payload(os.system, f"touch {sentinel}")}, 2)
    lay_out(tmp_path, "py", {"data_batch_3": trap})
    for verify in (True, False):
        with pytest.raises(ValueError, match=r"data_batch_\d (cannot be read as a plain batch|is not the published)"):
            cifar10.load(tmp_path, valid=20, seed=0, verify=verify)
    assert not sentinel.exists()


def repickled(**change):
    return pickle.dumps({"data": pixels(0), "labels": labels(0), **change})


GOOD = binary(0)
BAD = {
    "cut": ({"data_batch_2.bin": GOOD[:-1]}, "data_batch_2.bin has 61459 bytes, which is not a label and 3072 pixels"),
    "empty": ({"test_batch.bin": b""}, "test_batch.bin has 0 bytes"),
    "label out of range": ({"data_batch_1.bin": b"\x0a" + GOOD[1:]}, "cifar10 train set has labels from 0 to 10"),
    "test label out of range": ({"test_batch.bin": b"\xff" + GOOD[1:]}, "cifar10 test set has labels from 0 to 255"),
}
BAD_PICKLES = {
    "cut": (python(1)[:-4], "cannot be read as a plain batch"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "cannot be read as a plain batch"),
    "no labels": (pickle.dumps({"data": pixels(0)}), "a list 'labels' but holds data;"),
    "CIFAR-100": (pickle.dumps({"data": pixels(0), "fine_labels": labels(0)}), "but holds data, fine_labels;"),
    "nothing": (pickle.dumps({}), "but holds nothing;"),
    "data is a list": (repickled(data=[1]), "needs an array 'data'"),
    "other width": (repickled(data=pixels(0)[:, :-1]), r"needs an array 'data' of \(n, 3072\) bytes"),
    "flat": (repickled(data=pixels(0).ravel()), "needs an array 'data'"),
    "too few labels": (repickled(labels=labels(0)[:-1]), "has 20 images but 19 labels"),
    "label too large": (repickled(labels=[10] * N), "has labels other than 0 to 9"),
    "label beyond a byte": (repickled(labels=[2**70] * N), "has labels other than 0 to 9"),
    "label is a word": (repickled(labels=["cat"] * N), "has labels other than 0 to 9"),
    "label is true": (repickled(labels=[True] * N), "has labels other than 0 to 9"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_binary_batches_are_refused_in_one_sentence(tmp_path, name):
    changed, message = BAD[name]
    with pytest.raises(ValueError, match=message) as refusal:
        cifar10.load(lay_out(tmp_path, "bin", changed), valid=20, seed=0, verify=False)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", BAD_PICKLES)
def test_invalid_python_batches_are_refused_in_one_sentence(tmp_path, name):
    content, message = BAD_PICKLES[name]
    with pytest.raises(ValueError, match=f"data_batch_2 .*{message}") as refusal:
        cifar10.load(lay_out(tmp_path, "py", {"data_batch_2": content}), valid=20, seed=0, verify=False)
    assert "\n" not in str(refusal.value)


def test_a_huge_file_is_not_read(tmp_path):
    lay_out(tmp_path)
    with (tmp_path / "data_batch_1.bin").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file
    with pytest.raises(ValueError, match=r"data_batch_1\.bin has 1099511627776 bytes but at most 67108864 are read"):
        cifar10.load(tmp_path, valid=20, seed=0)


def test_reading_a_pipe_does_not_block(tmp_path):
    lay_out(tmp_path)
    (tmp_path / "data_batch_1.bin").unlink()
    os.mkfifo(tmp_path / "data_batch_1.bin")
    with pytest.raises(ValueError, match=r"data_batch_1\.bin is not a file"):
        cifar10.load(tmp_path, valid=20, seed=0)


def test_missing_files_are_named_with_the_searched_folders_and_instructions(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    lay_out(tmp_path / "cifar10")
    # files of two folders are never combined
    (tmp_path / "cifar10" / "test_batch.bin").rename(tmp_path / "test_batch.bin")
    with pytest.raises(FileNotFoundError) as refusal:
        cifar10.load(tmp_path, valid=20, seed=0)
    message = str(refusal.value)
    assert all(f"{name}.bin" in message for name in BATCHES)
    for place in ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10"):
        assert str(tmp_path / place) in message
    assert "python batches" in message
    assert "cifar-10-binary.tar.gz | tar -xz -C DIR" in message
    assert "--data-dir DIR" in message
    assert "\n" not in message
    with pytest.raises(FileNotFoundError, match="no folder was named"):
        cifar10.load(None, valid=20, seed=0)


def real():
    top = os.environ.get("HOLDFAST_DATA")
    return bool(top) and (Path(top) / "cifar-10-batches-bin" / "test_batch.bin").is_file()


@pytest.mark.skipif(not real(), reason="no cifar-10-batches-bin under HOLDFAST_DATA")
def test_the_published_files():
    data = cifar10.load(None, valid=5000, seed=0)
    assert (len(data.train), len(data.valid), len(data.test)) == (45000, 5000, 10000)
    assert data.test.y.bincount().tolist() == [1000] * 10
    sums = sum(split.x.sum((0, 2, 3), dtype=torch.int64) for split in (data.train, data.valid))
    assert (sums / 255 / 50000 / 1024).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert data.test.y[:5].tolist() == [3, 8, 8, 0, 6]
