"""CIFAR-10: 50000 and 10000 color photographs of 32x32 pixels in 10 classes (Krizhevsky 2009)."""

from hashlib import md5, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data.readers import pickled
from holdfast.data.readers.files import content, find_folder, missing, refuse_unpublished, searched
from holdfast.data.split import DataSet, data_set

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PUBLISHED = {  # SHA-256 of the binary batches, and the MD5 that torchvision states for the python batches
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_BINARY = tuple(name for name in _PUBLISHED if name.endswith(".bin"))
_PYTHON = tuple(name for name in _PUBLISHED if not name.endswith(".bin"))
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10")
_GET = (
    "get it from Alex Krizhevsky's page with: "
    "curl -L https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz | tar -xz -C DIR"
)
_PIXELS = 3 * 32 * 32
_LARGEST = 1 << 26  # bytes of one batch; the published ones have 31 MB


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load CIFAR-10 from its six binary or Python batches; ``verify`` checks that they are the published files.

    Python batches are pickles; they are parsed without executing anything in them.
    """
    batches = [_batch(path, verify) for path in _paths(folder)]
    train = torch.cat([x for x, _ in batches[:-1]]), torch.cat([y for _, y in batches[:-1]])
    return data_set("cifar10", {"train": train, "test": batches[-1]}, _CLASSES, valid=valid, seed=seed)


def _paths(folder: Path | None) -> list[Path]:
    for files in (_BINARY, _PYTHON):
        place = find_folder(_FOLDERS, files, folder)
        if place:
            return [place / file for file in files]
    needed = f"the files {', '.join(_BINARY)}, or the python batches of the same names without .bin, together"
    raise FileNotFoundError(missing("cifar10", needed, searched(_FOLDERS, folder), _GET))


def _batch(path: Path, verify: bool) -> tuple[Tensor, Tensor]:
    data = content(path, _LARGEST)
    binary = path.suffix == ".bin"
    if verify:
        found = sha256(data) if binary else md5(data, usedforsecurity=False)
        refuse_unpublished(path, found.hexdigest(), _PUBLISHED[path.name], "SHA-256" if binary else "MD5")
    return _binary(data, path) if binary else _python(data, path)


def _binary(data: bytes, path: Path) -> tuple[Tensor, Tensor]:
    if not data or len(data) % (1 + _PIXELS):
        raise ValueError(
            f"{path} has {len(data)} bytes, which is not a label and {_PIXELS} pixels for each image; download it again"
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    return _images(rows[:, 1:]), torch.from_numpy(rows[:, 0].copy())


def _python(data: bytes, path: Path) -> tuple[Tensor, Tensor]:
    batch = pickled.read(data, path)
    pixels, labels = batch.get("data"), batch.get("labels")
    if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (_PIXELS,) or not isinstance(labels, list):
        has = ", ".join(batch)[:80] or "nothing"
        raise ValueError(
            f"{path} needs an array 'data' of (n, {_PIXELS}) bytes and a list 'labels' but holds {has}; give the "
            "published file"
        )
    if not all(type(label) is int and 0 <= label < len(_CLASSES) for label in labels):
        raise ValueError(f"{path} has labels other than 0 to {len(_CLASSES) - 1}; give the published file")
    if len(labels) != len(pixels):
        raise ValueError(f"{path} has {len(pixels)} images but {len(labels)} labels; give the published file")
    return _images(pixels), torch.tensor(labels, dtype=torch.uint8)


def _images(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    return torch.from_numpy(pixels.reshape(-1, 3, 32, 32, order="C").copy())  # torch needs writable memory
