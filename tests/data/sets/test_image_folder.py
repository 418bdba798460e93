import os

import pytest
import torch

from holdfast import data as named
from holdfast.data.sets import image_folder
from pictures import bomb, flat

CLASSES = ["ant", "bee", "cow"]
FORMATS = ["PNG", "JPEG", "BMP", "PPM"]


def fill(place, many, gray=False):
    """Write images whose red channel encodes the class."""
    for label, name in enumerate(CLASSES):
        (place / name).mkdir(parents=True)
        for i in range(many):
            color = 60 * label if gray else (60 * label, 0, 9)
            (place / name / f"{i:02}.img").write_bytes(flat(color, format=FORMATS[i % 4]))


@pytest.fixture
def top(tmp_path):
    fill(tmp_path / "mine" / "train", 8)
    fill(tmp_path / "mine" / "test", 2)
    return tmp_path / "mine"


def load(top, **change):
    return image_folder.load(top, **{"valid": 3, "seed": 0, **change})


def check(split):
    assert ((split.x[:, 0, 0, 0].long() - 60 * split.y).abs() <= 3).all()


def test_images_are_labeled_by_their_folder(top):
    data = load(top)
    assert (data.name, data.shape, data.classes) == ("image-folder:mine", (3, 3, 4), tuple(CLASSES))
    assert (len(data.train), len(data.valid), len(data.test)) == (21, 3, 6)
    assert data.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    for split in (data.train, data.valid, data.test):
        assert split.x.dtype == torch.uint8
        check(split)


@pytest.mark.parametrize("name", ["image-folder", "imagefolder"])
def test_by_name(top, name):
    by_path = named.load(f"{name}:{top}", valid=3)
    assert by_path.digest == named.load(f"{name}:mine", top.parent, valid=3).digest == load(top).digest


def test_val_alone_is_the_test_set(top):
    (top / "test").rename(top / "val")
    assert len(load(top).test) == 6


def test_val_beside_test_is_the_validation_part(top):
    fill(top / "val", 1)
    data = load(top)
    assert (len(data.train), len(data.valid), len(data.test)) == (24, 3, 6)
    assert data.valid.y.tolist() == [0, 1, 2]
    check(data.valid)


def test_grayscale_images_have_one_channel(tmp_path):
    fill(tmp_path / "train", 4, gray=True)
    fill(tmp_path / "test", 4, gray=True)
    data = load(tmp_path)
    assert data.shape == (1, 3, 4)
    check(data.train)


def test_files_of_file_managers_and_other_folders_are_ignored(top):
    whole = load(top)
    (top / "train" / ".cache").mkdir()
    (top / "train" / "ant" / ".DS_Store").write_bytes(b"x")
    (top / "test" / "bee" / "Thumbs.db").write_bytes(b"x")
    (top / "README.txt").write_text("beside train and test anything may lie")
    (top / "extra").mkdir()
    assert load(top).digest == whole.digest


def replace_by_link(path, target):
    path.rename(target)
    path.symlink_to(target)


MALICIOUS = {
    "a text": (lambda top: (top / "train" / "ant" / "notes.txt").write_text("x"), r"notes\.txt cannot be read as"),
    "another size": (lambda top: (top / "test" / "bee" / "z.png").write_bytes(flat(9, (5, 3))), r"z\.png has 5x3"),
    "bomb": (lambda top: (top / "test" / "bee" / "z.png").write_bytes(bomb(60000, 60000)), "decompression bomb"),
    "first is a bomb": (lambda top: (top / "train" / "ant" / "0.png").write_bytes(bomb(60000, 60000)), "decompression"),
    "link out": (lambda top: (top / "train" / "ant" / "z").symlink_to("/etc/passwd"), "z is a link that does not lead"),
    "class is a link out": (lambda top: replace_by_link(top / "test" / "bee", top.parent / "b"), "bee is a link that"),
    "part is a link out": (lambda top: replace_by_link(top / "test", top.parent / "t"), "test is a link that does not"),
    "pipe": (lambda top: os.mkfifo(top / "train" / "ant" / "z"), "z is not a file"),
    "folder in a class": (lambda top: (top / "train" / "ant" / "z").mkdir(), "z is not a file"),
    "file beside classes": (lambda top: (top / "train" / "a.png").write_bytes(flat(9)), r"a\.png is not a folder"),
    "unknown class": (lambda top: (top / "test" / "elk").mkdir(), "elk is a class that the train folder does not have"),
    "empty class": (lambda top: (top / "train" / "elk").mkdir(), "elk holds no file"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_folders_are_refused_in_one_sentence(top, name):
    damage, message = MALICIOUS[name]
    damage(top)
    with pytest.raises(ValueError, match=message) as refusal:
        load(top)
    assert "\n" not in str(refusal.value)


def test_a_folder_without_classes_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match="train holds no class"):
        load(tmp_path)


def test_missing_folders_are_named(tmp_path):
    fill(tmp_path / "train", 1)
    with pytest.raises(
        FileNotFoundError, match=r"image-folder needs .*/train/CLASS/IMAGE and .*found train there; lay"
    ):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="found no folder there"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="name them image-folder:PATH"):
        load(None)


def only_test(top, **change):
    found = image_folder.load_test(top, **change)
    check(found.test)
    return found


def test_load_test_agrees_with_load(top):
    found, whole = only_test(top), load(top)
    assert (found.name, found.classes) == (whole.name, whole.classes)
    assert torch.equal(found.test.x, whole.test.x)
    assert torch.equal(found.test.y, whole.test.y)
    assert torch.equal(found.test.index, whole.test.index)
    assert named.load_test(f"imagefolder:{top}").digest == found.digest


def test_load_test_does_not_decode_training_images(top):
    for path in (top / "train").rglob("*.img"):
        path.write_bytes(b"damaged")
    assert len(only_test(top).test) == 6


def test_load_test_accepts_a_folder_of_classes(top):
    found = only_test(top / "train")
    assert (found.classes, len(found.test)) == (tuple(CLASSES), 24)


def test_load_test_decodes_only_the_chosen_samples(top):
    found = only_test(top / "train", samples=6)
    assert found.test.index.tolist() == [0, 4, 8, 12, 16, 20]
    assert torch.equal(found.test.x, only_test(top / "train").test.x[::4])
    files = sorted((top / "train").rglob("*.img"))
    for i in set(range(24)) - set(found.test.index.tolist()):
        files[i].write_bytes(b"damaged")
    assert only_test(top / "train", samples=6).digest == found.digest


def test_load_test_uses_the_classes_of_train(top):
    for path in (top / "test" / "bee").iterdir():
        path.unlink()
    (top / "test" / "bee").rmdir()
    found = only_test(top)
    assert (found.classes, found.test.y.tolist()) == (tuple(CLASSES), [0, 0, 2, 2])


@pytest.mark.parametrize("name", [name for name in MALICIOUS if name not in ("a text", "another size")])
def test_load_test_refuses_malicious_folders(top, name):
    damage, message = MALICIOUS[name]
    damage(top)
    folder = top / "train" if name in ("pipe", "folder in a class", "link out", "first is a bomb") else top
    if name in ("file beside classes", "empty class"):
        folder = top / "train"
    with pytest.raises(ValueError, match=message) as refusal:
        image_folder.load_test(folder)
    assert "\n" not in str(refusal.value)


def test_load_test_refuses_train_without_test(tmp_path):
    fill(tmp_path / "train", 1)
    with pytest.raises(FileNotFoundError, match="holds train but neither test nor val"):
        image_folder.load_test(tmp_path)
    for absent in (None, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match=r"there is no folder .*; name a folder of images as image-folder:"):
            image_folder.load_test(absent)
