"""The idx format of MNIST and similar sets: a magic number, the dimensions as big-endian uint32, then the bytes."""

import gzip
import struct
import zlib
from collections.abc import Mapping
from hashlib import sha256
from io import BufferedIOBase
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from holdfast.data.readers.files import find, refuse_unpublished
from holdfast.data.split import DataSet, Split, checked, split_train

_UBYTE = 8
_LARGEST = 1 << 30  # bytes; MNIST's images are 47 MB, and a few MB of gzip can unpack to many GB
_SAMPLES = 1 << 24  # each sample takes memory beside its bytes
_CHUNK = 1 << 20


def read(path: Path, rank: int, published: str | None = None) -> Tensor:
    """Read an idx file, gzipped or plain, as uint8 of the shape given in its header.

    ``published`` is the expected SHA-256 of the decompressed file, if it should be verified.
    """
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"  # by content: browsers decompress files and keep the name
        with gzip.open(path) if packed else path.open("rb") as stream:
            return _parse(stream, path, rank, published)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); download it again") from error


def _parse(stream: BufferedIOBase, path: Path, rank: int, published: str | None) -> Tensor:
    header = stream.read(4 + 4 * rank)
    if header[:4] != bytes((0, 0, _UBYTE, rank)):
        raise ValueError(
            f"{path} starts with {header[:4].hex() or 'nothing'} but an idx file of unsigned bytes with {rank} "
            f"dimensions starts with {bytes((0, 0, _UBYTE, rank)).hex()}; give the published file"
        )
    if len(header) < 4 + 4 * rank:
        raise ValueError(f"{path} ends inside its header of {4 + 4 * rank} bytes; download it again")
    shape = struct.unpack(f">{rank}I", header[4:])
    if prod(shape) > _LARGEST:
        raise ValueError(f"{path} promises {prod(shape)} bytes but at most {_LARGEST} are read; give a smaller set")
    if shape[0] > _SAMPLES:
        raise ValueError(f"{path} promises {shape[0]} samples but at most {_SAMPLES} are read; give a smaller set")
    body = _read_up_to(stream, prod(shape) + 1)  # one more byte: gzip verifies its checksum at the end of the file
    if len(body) != prod(shape):
        given = "more" if len(body) > prod(shape) else f"only {len(body)}"
        raise ValueError(f"{path} promises {prod(shape)} bytes of data but holds {given}; download it again")
    if published is not None:
        refuse_unpublished(path, sha256(header + body).hexdigest(), published, "unpacked SHA-256")
    return torch.frombuffer(body, dtype=torch.uint8).reshape(shape) if body else torch.empty(shape, dtype=torch.uint8)


def _read_up_to(stream: BufferedIOBase, most: int) -> bytearray:
    """Read at most ``most`` bytes in chunks, because one read would allocate the size that a header merely claims."""
    body = bytearray()
    while len(body) < most and (chunk := stream.read(min(_CHUNK, most - len(body)))):
        body += chunk
    return body


def load_four(
    name: str,
    folder: Path | None,
    classes: tuple[str, ...],
    published: Mapping[str, str],
    get: str,
    *,
    valid: float | int,
    seed: int,
    verify: bool,
) -> DataSet:
    """Load a data set from the four idx files of the MNIST format."""
    paths = find(name, published, folder, get=get)

    def part(prefix: str, description: str) -> Split:
        images, labels = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        x = read(paths[images], 3, published[images] if verify else None)
        y = read(paths[labels], 1, published[labels] if verify else None)
        return checked(x[:, None], y, classes=len(classes), part=f"{name} {description}")

    train, validation = split_train(part("train", "train"), valid, seed)
    return DataSet(name, train, validation, part("t10k", "test"), classes)
