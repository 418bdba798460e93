"""Tiny replacements of the published data sets in their real file formats: noise, a few images per class."""

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
GENERATOR = np.random.default_rng(0)


def write_all(folder: Path) -> Path:
    """Write the image data sets to a folder: 40 training and 20 test images, ten classes."""
    _mnist(folder / "mnist")
    _mnist(folder / "fashion-mnist")
    _cifar10(folder / "cifar-10-batches-bin")
    _tiny_imagenet(folder / "tiny-imagenet-200")
    return folder


def _pixels(*shape: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return GENERATOR.integers(0, 256, shape, dtype=np.uint8)


def _mnist(folder: Path) -> None:
    folder.mkdir(parents=True)
    for prefix, n in (("train", 40), ("t10k", 20)):
        images = struct.pack(">4I", 0x803, n, 28, 28) + _pixels(n, 28, 28).tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">2I", 0x801, n) + bytes(i % CLASSES for i in range(n))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def _cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, n in [*((f"data_batch_{i}", 8) for i in range(1, 6)), ("test_batch", 20)]:
        first = 8 * int(name[-1]) if name[-1].isdigit() else 0
        rows = _pixels(n, 1 + 3072)
        rows[:, 0] = (first + np.arange(n)) % CLASSES
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def _tiny_imagenet(top: Path) -> None:
    wnids = [f"n{label:08d}" for label in range(CLASSES)]
    (top / "val" / "images").mkdir(parents=True)
    (top / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (top / "words.txt").write_text("".join(f"{wnid}\tthing {wnid}\n" for wnid in wnids))
    for wnid in wnids:
        images = top / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(4):
            (images / f"{wnid}_{i}.JPEG").write_bytes(_jpeg())
    for i in range(20):
        (top / "val" / "images" / f"val_{i}.JPEG").write_bytes(_jpeg())
    lines = [f"val_{i}.JPEG\t{wnids[i % CLASSES]}\t0\t0\t63\t63\n" for i in range(20)]
    (top / "val" / "val_annotations.txt").write_text("".join(lines))


def _jpeg() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(_pixels(64, 64, 3)).save(stream, format="JPEG")
    return stream.getvalue()
