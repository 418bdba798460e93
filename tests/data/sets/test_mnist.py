import gzip
import hashlib
import os
import struct
from pathlib import Path

import pytest
import torch

from holdfast.data.sets import fashion_mnist, mnist

FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
KNOWN = {"mnist": mnist, "fashion-mnist": fashion_mnist}


def contents(train=40, test=20):
    """Small versions of the four files: image i has all pixels i and label i modulo 10."""
    made = {}
    for prefix, n in (("train", train), ("t10k", test)):
        pixels = b"".join(bytes([i]) * 6 for i in range(n))
        made[f"{prefix}-images-idx3-ubyte"] = struct.pack(">4I", 0x803, n, 2, 3) + pixels
        made[f"{prefix}-labels-idx1-ubyte"] = struct.pack(">2I", 0x801, n) + bytes(i % 10 for i in range(n))
    return made


def lay_out(folder, made, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_images_labels_and_positions_stay_together(tmp_path, name, packed, nested):
    lay_out(tmp_path / name if nested else tmp_path, contents(), packed)
    data = KNOWN[name].load(tmp_path, valid=10, seed=3, verify=False)
    assert (data.name, data.shape, len(data.classes)) == (name, (1, 2, 3), 10)
    assert (len(data.train), len(data.valid), len(data.test)) == (30, 10, 20)
    assert data.valid.y.bincount().tolist() == [1] * 10
    for split in (data.train, data.valid, data.test):
        assert split.x.dtype == torch.uint8
        assert torch.equal(split.y, split.index % 10)
        batch = split.batch(torch.arange(len(split)))
        assert torch.equal(batch.x, (split.index.float() / 255).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 3))


def test_the_test_set_does_not_depend_on_the_seed(tmp_path):
    lay_out(tmp_path, contents())
    one, two = (mnist.load(tmp_path, valid=0.25, seed=seed, verify=False) for seed in (1, 2))
    assert torch.equal(one.test.x, two.test.x)
    assert one.valid.index.tolist() != two.valid.index.tolist()


@pytest.mark.parametrize("packed", [True, False])
def test_verify_accepts_only_the_published_files(tmp_path, monkeypatch, packed):
    made = contents()
    monkeypatch.setattr(mnist, "_PUBLISHED", {name: hashlib.sha256(made[name]).hexdigest() for name in FILES})
    lay_out(tmp_path, made, packed)
    assert len(mnist.load(tmp_path, valid=10, seed=0).test) == 20
    for name in FILES:
        changed = {**made, name: made[name][:-1] + b"\x01"}
        lay_out(tmp_path, changed, packed)
        with pytest.raises(ValueError, match=f"{name}.* is not the published file.*or say verify = false"):
            mnist.load(tmp_path, valid=10, seed=0)
        assert len(mnist.load(tmp_path, valid=10, seed=0, verify=False).test) == 20


@pytest.mark.parametrize("name", KNOWN)
def test_verify_refuses_other_files(tmp_path, name):
    lay_out(tmp_path, contents())
    with pytest.raises(ValueError, match="is not the published file"):
        KNOWN[name].load(tmp_path, valid=10, seed=0)


def test_a_different_number_of_labels_is_refused(tmp_path):
    made = contents()
    made["t10k-labels-idx1-ubyte"] = contents(test=19)["t10k-labels-idx1-ubyte"]
    lay_out(tmp_path, made)
    with pytest.raises(ValueError, match="the mnist test set has 20 samples but 19 labels"):
        mnist.load(tmp_path, valid=10, seed=0, verify=False)


def test_labels_out_of_range_are_refused(tmp_path):
    made = contents()
    made["train-labels-idx1-ubyte"] = made["train-labels-idx1-ubyte"][:-1] + b"\x0a"
    lay_out(tmp_path, made)
    with pytest.raises(ValueError, match="the mnist train set has labels from 0 to 10 but with 10 classes 0 to 9"):
        mnist.load(tmp_path, valid=10, seed=0, verify=False)


def test_an_empty_set_is_refused(tmp_path):
    lay_out(tmp_path, contents(test=0))
    with pytest.raises(ValueError, match="the mnist test set is empty"):
        mnist.load(tmp_path, valid=10, seed=0, verify=False)


def test_missing_files_are_named_with_the_searched_folders_and_instructions(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    lay_out(tmp_path / "mnist", contents())
    (tmp_path / "mnist" / f"{FILES[3]}.gz").unlink()
    lay_out(tmp_path, {FILES[3]: contents()[FILES[3]]})  # in the other folder: files of two folders are never combined
    with pytest.raises(FileNotFoundError) as refusal:
        mnist.load(tmp_path, valid=10, seed=0)
    message = str(refusal.value)
    assert all(file in message for file in FILES)
    assert f"looked in {tmp_path / 'mnist'} and {tmp_path}" in message
    assert "torchvision.datasets.MNIST(DIR, download=True)" in message
    assert "--data-dir DIR" in message
    assert "HOLDFAST_DATA" in message
    assert "\n" not in message


def test_the_message_explains_that_no_folder_was_given(monkeypatch):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"no folder was named.*--data-dir DIR"):
        mnist.load(None, valid=10, seed=0)


def test_an_explicit_folder_takes_precedence_over_the_environment(tmp_path, monkeypatch):
    lay_out(tmp_path / "there" / "mnist", contents(test=10))
    lay_out(tmp_path / "here", contents(test=20))
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "there"))
    assert len(mnist.load(None, valid=10, seed=0, verify=False).test) == 10
    assert len(mnist.load(tmp_path / "here", valid=10, seed=0, verify=False).test) == 20


def real(name):
    top = os.environ.get("HOLDFAST_DATA")
    return bool(top) and any((Path(top) / name / f"{FILES[0]}{end}").is_file() for end in ("", ".gz"))


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        pytest.param(name, mean, marks=pytest.mark.skipif(not real(name), reason=f"no {name} under HOLDFAST_DATA"))
        for name, mean in (("mnist", 0.1307), ("fashion-mnist", 0.2860))
    ],
)
def test_the_published_files(name, mean):
    data = KNOWN[name].load(None, valid=5000, seed=0)
    assert (len(data.train), len(data.valid), len(data.test)) == (55000, 5000, 10000)
    assert data.shape == (1, 28, 28)
    total = sum(float(split.x.sum(dtype=torch.int64)) for split in (data.train, data.valid))
    assert total / 255 / 60000 / 784 == pytest.approx(mean, abs=5e-5)
    if name == "mnist":
        assert data.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    else:
        assert data.test.y.bincount().tolist() == [1000] * 10


def test_both_sets_list_all_four_files():
    assert set(mnist._PUBLISHED) == set(fashion_mnist._PUBLISHED) == set(FILES)
    assert not set(mnist._PUBLISHED.values()) & set(fashion_mnist._PUBLISHED.values())
