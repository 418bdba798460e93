import os
import time
from pathlib import Path

import pytest
import torch

from holdfast.data.sets import tiny_imagenet
from pictures import bomb, flat

WNIDS = ["n02124075", "n04067472", "n01443537"]  # not sorted, as published
SIZE = (64, 64)


def lay_out(top, train=6, test=4):
    """Red encodes the class and green the image; the last image of a class is gray."""
    top.mkdir(parents=True, exist_ok=True)
    (top / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (top / "words.txt").write_text("n00001740\tentity\nn02124075\tEgyptian cat\nn04067472\treel, bobbin\n")
    (top / "val" / "images").mkdir(parents=True)
    lines = []
    for label, wnid in enumerate(WNIDS):
        (top / "train" / wnid / "images").mkdir(parents=True)
        (top / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
        for i in range(train):
            (top / "train" / wnid / "images" / f"{wnid}_{i}.JPEG").write_bytes(picture(label, i, i == train - 1))
    for i in range(test * len(WNIDS)):
        label = i % len(WNIDS)
        (top / "val" / "images" / f"val_{i}.JPEG").write_bytes(picture(label, i // len(WNIDS)))
        lines.append(f"val_{i}.JPEG\t{WNIDS[label]}\t0\t0\t63\t63\n")
    (top / "val" / "val_annotations.txt").write_text("".join(lines))
    return top


def picture(label, i, gray=False):
    return flat(20 * i, SIZE, "JPEG") if gray else flat((80 * label, 20 * i, 0), SIZE, "JPEG")


@pytest.fixture
def top(tmp_path):
    return lay_out(tmp_path / "tiny-imagenet-200")


def load(top, **change):
    return tiny_imagenet.load(top, **{"valid": 3, "seed": 0, "verify": False, **change})


def near(value, expected):
    return (value.float() - expected).abs().max() <= 4  # JPEG is lossy


@pytest.mark.parametrize("place", ["tiny-imagenet-200", "tiny-imagenet", "."])
def test_images_and_labels_stay_together(tmp_path, place):
    lay_out(tmp_path / place)
    data = load(tmp_path)
    assert (data.name, data.shape) == ("tiny-imagenet", (3, 64, 64))
    assert data.classes == ("Egyptian cat", "reel", "n01443537")
    assert (len(data.train), len(data.valid), len(data.test)) == (15, 3, 12)
    assert data.valid.y.tolist() == [0, 1, 2]
    for split in (data.train, data.valid):
        assert split.x.dtype == torch.uint8
        label, i = split.index // 6, split.index % 6
        assert torch.equal(split.y, label)
        assert near(split.x[:, 1], (20.0 * i)[:, None, None])
        red = torch.where(i == 5, 100.0, 80.0 * label)  # the last image is gray: its channels are equal
        assert near(split.x[:, 0], red[:, None, None])
    assert data.test.y.tolist() == [0, 1, 2] * 4
    assert near(data.test.x[:, 0], (80.0 * data.test.y)[:, None, None])
    assert near(data.test.x[:, 1], (20.0 * torch.arange(12).div(3, rounding_mode="floor"))[:, None, None])


def test_the_test_set_does_not_depend_on_the_seed(top):
    one, two = load(top, seed=1), load(top, seed=2)
    assert torch.equal(one.test.x, two.test.x)
    assert one.valid.index.tolist() != two.valid.index.tolist()


def test_a_subset_of_the_classes(top):
    for file in (top / "train" / WNIDS[0] / "images").iterdir():
        file.unlink()
    (top / "train" / WNIDS[0] / "images").rmdir()
    (top / "train" / WNIDS[0] / f"{WNIDS[0]}_boxes.txt").unlink()
    (top / "train" / WNIDS[0]).rmdir()
    whole = load(top)
    assert whole.classes == ("reel", "n01443537")
    assert whole.test.y.tolist() == [0, 1] * 4
    assert near(whole.test.x[:, 0], (80.0 * (whole.test.y + 1))[:, None, None])
    for i in range(0, 12, 3):  # its test images may be missing as well
        (top / "val" / "images" / f"val_{i}.JPEG").unlink()
    assert load(top).digest == whole.digest


def test_grayscale_images_are_converted_to_rgb(top):
    for path in top.rglob("*.JPEG"):
        path.write_bytes(flat(90, SIZE, "JPEG"))
    assert load(top).shape == (3, 64, 64)


def test_classes_that_share_a_word_are_named_by_wnid(top):
    (top / "words.txt").write_text("n02124075\tcrane\nn04067472\tcrane, bird\nn01443537\tgoldfish\n")
    assert load(top).classes == ("n02124075", "n04067472", "goldfish")
    (top / "words.txt").unlink()
    assert load(top).classes == tuple(WNIDS)


def test_verify_requires_the_published_counts(top, monkeypatch):
    with pytest.raises(
        ValueError, match=r"class n02124075 of .* has 6 training images where 500 are published.*verify ="
    ):
        load(top, verify=True)
    monkeypatch.setattr(tiny_imagenet, "_COUNTS", {"training": 6, "test": 4})
    assert len(load(top, verify=True).test) == 12
    monkeypatch.setattr(tiny_imagenet, "_COUNTS", {"training": 6, "test": 50})
    with pytest.raises(ValueError, match="has 4 test images where 50 are published"):
        load(top, verify=True)


def annotate(top, line):
    with (top / "val" / "val_annotations.txt").open("a") as file:
        file.write(line + "\n")


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def replace_by_link(path, target):
    path.rename(target)
    path.symlink_to(target)


def truncate(top):
    path = top / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:200])


IMAGES = Path("train") / WNIDS[0] / "images"
MALICIOUS = {
    "bomb": (lambda top: (top / IMAGES / "x.JPEG").write_bytes(bomb(60000, 60000)), "decompression bomb"),
    "another size": (lambda top: (top / IMAGES / "x.JPEG").write_bytes(flat(9, (65, 64))), "has 65x64 pixels"),
    "truncated": (truncate, r"_2\.JPEG cannot be read"),
    "no image": (lambda top: (top / IMAGES / "x.JPEG").write_bytes(b"no"), r"x\.JPEG cannot be read"),
    "traversal in annotations": (
        lambda top: annotate(top, "../../train/n02124075/images/n02124075_0.JPEG\tn02124075"),
        "line 13 of .*val_annotations.txt names '../../train.*', which is not in",
    ),
    "absolute path in annotations": (lambda top: annotate(top, "/etc/passwd\tn02124075"), "names '/etc/passwd', which"),
    "annotation of nothing": (lambda top: annotate(top, "val_99.JPEG\tn02124075"), "names 'val_99.JPEG', which"),
    "annotated twice": (lambda top: annotate(top, "val_0.JPEG\tn04067472"), "line 13 of .* has 'val_0.JPEG"),
    "unknown class": (lambda top: annotate(top, "val_0.JPEG\tn99999999"), "line 13 of .* a class of wnids.txt are"),
    "no class": (lambda top: annotate(top, "val_0.JPEG"), "line 13 of .* a class of wnids.txt are allowed"),
    "image without annotation": (
        lambda top: (top / "val" / "images" / "val_77.JPEG").write_bytes(picture(0, 0)),
        r"val_77\.JPEG has no line in val_annotations\.txt",
    ),
    "binary annotations": (
        lambda top: (top / "val" / "val_annotations.txt").write_bytes(b"\xff\x00\x80\n"),
        "line 1 of",
    ),
    "traversal in wnids": (
        lambda top: (top / "wnids.txt").write_text("../../secret\n"),
        "line 1 of .*wnids.txt has '../../secret' where a class such as n02124075, once, is allowed",
    ),
    "class twice": (lambda top: (top / "wnids.txt").write_text("\n".join(WNIDS + WNIDS[:1])), "line 4 of .*wnids.txt"),
    "no class at all": (lambda top: (top / "wnids.txt").write_text("n00000001\n"), "none of the classes of"),
    "strange class": (lambda top: (top / "train" / "n00000001").mkdir(), "n00000001 is no class of .*wnids.txt"),
    "class without images": (lambda top: [p.unlink() for p in (top / IMAGES).iterdir()], "images holds no file"),
    "image is a link out": (lambda top: link(top / IMAGES / "x.JPEG", "/etc/passwd"), r"x\.JPEG is a link that"),
    "image is a loop": (lambda top: link(top / IMAGES / "x.JPEG", "x.JPEG"), r"x\.JPEG is a link that does not lead"),
    "class is a link out": (
        lambda top: replace_by_link(top / "train" / WNIDS[2], top.parent / "elsewhere"),
        "n01443537 is a link that does not lead into",
    ),
    "test folder is a link out": (
        lambda top: replace_by_link(top / "val" / "images", top.parent / "elsewhere"),
        "images is not a folder inside",
    ),
    "pipe": (lambda top: os.mkfifo(top / IMAGES / "x.JPEG"), r"x\.JPEG is not a file"),
    "folder among images": (lambda top: (top / IMAGES / "deep").mkdir(), "deep is not a file"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious_folders_are_refused_in_one_sentence(top, name):
    damage, message = MALICIOUS[name]
    damage(top)
    with pytest.raises(ValueError, match=message) as refusal:
        load(top)
    assert "\n" not in str(refusal.value)


def test_hidden_files_and_internal_links_are_accepted(top):
    (top / IMAGES / ".DS_Store").write_bytes(b"litter")
    inside = top / IMAGES / f"{WNIDS[0]}_9.JPEG"
    inside.symlink_to(top / IMAGES / f"{WNIDS[0]}_0.JPEG")
    assert len(load(top).train) == 16


@pytest.mark.parametrize("gone", ["wnids.txt", "val/val_annotations.txt"])
def test_missing_files_are_named_with_the_searched_folders_and_instructions(top, monkeypatch, gone):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    (top / gone).unlink()
    with pytest.raises(FileNotFoundError) as refusal:
        tiny_imagenet.load(top.parent, valid=3, seed=0)
    message = str(refusal.value)
    assert "wnids.txt, train, val/images, val/val_annotations.txt" in message
    assert f"looked in {top}" in message
    assert "unzip tiny-imagenet-200.zip" in message
    assert "--data-dir DIR" in message
    with pytest.raises(FileNotFoundError, match="no folder was named"):
        tiny_imagenet.load(None, valid=3, seed=0)


def test_reading_a_long_list_of_classes_takes_linear_time(top):
    with (top / "wnids.txt").open("a") as file:
        file.writelines(f"n{number:08}\n" for number in range(10**7, 10**7 + 60_000))
    started = time.perf_counter()
    assert len(load(top).classes) == len(WNIDS)
    assert time.perf_counter() - started < 15  # quadratic time would take a minute
