"""Decoding of image files; the header of each is checked before its pixels are decompressed."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

_Array = np.ndarray[Any, np.dtype[np.uint8]]
_FORMATS = ("JPEG", "PNG", "BMP", "PPM")  # not EPS, which starts a program, nor formats that decompress when opened
_PIXELS = 1 << 24  # per image
_BYTES = 1 << 33  # per part of a data set, which is held in memory
_FILE = 1 << 27  # bytes per file; the largest image allowed has 50 MB uncompressed
_GRAY = {"1", "L", "LA"}
_DEEP = ("I", "F")  # prefixes of modes with more than 8 bits per channel


@dataclass(frozen=True)
class Picture:
    """An encoded image, and its name for error messages."""

    name: str
    data: Path | bytes


def of_files(paths: Sequence[Path]) -> list[Picture]:
    """Create pictures named by their paths."""
    return [Picture(str(path), path) for path in paths]


def decode_parts(parts: Mapping[str, Sequence[Picture]], fit: tuple[int, int] | None = None) -> dict[str, Tensor]:
    """Decode the pictures of each part to uint8 (n, channels, height, width); all must have the size of the first.

    There is one channel if all pictures of all parts are grayscale, else three; transparency is dropped. With ``fit`` =
    (resize, crop), pictures may differ in size: the shorter side is resized (bilinear) and the center is cropped.
    """
    size = _size(next(iter(parts.values()))[0]) if fit is None else (fit[1], fit[1])
    decoded = {part: decode(pictures, size, fit and fit[0]) for part, pictures in parts.items()}
    if all(gray for _, gray in decoded.values()):
        return {part: x[:, :1].contiguous() for part, (x, _) in decoded.items()}
    return {part: x for part, (x, _) in decoded.items()}


def decode(pictures: Sequence[Picture], size: tuple[int, int], scale: int | None = None) -> tuple[Tensor, bool]:
    """Decode pictures of ``size`` (width, height) to uint8 (n, 3, height, width); also return whether all are gray.

    With ``scale``, pictures of any size are accepted: their shorter side is resized to that many pixels and the center
    of this size is cropped.
    """
    n, (width, height) = len(pictures), size
    if 3 * n * width * height > _BYTES:
        raise ValueError(
            f"{n} images of {width}x{height} pixels take {3 * n * width * height} bytes but at most {_BYTES} are held "
            "in memory; give fewer or smaller images"
        )
    out = np.empty((n, 3, height, width), dtype=np.uint8)
    # a plain loop takes 9 s for 25,000 images of 64x64; threads do not help, as the GIL is held nearly all the time
    with _bombs_refused():
        gray = [_decode_into(target, picture, size, scale) for target, picture in zip(out, pictures, strict=True)]
    return torch.from_numpy(out), all(gray)


def _size(picture: Picture) -> tuple[int, int]:
    with _bombs_refused(), _opened(picture) as image:
        _check_header(image, picture, image.size)
        return image.size


def _decode_into(target: _Array, picture: Picture, size: tuple[int, int], scale: int | None) -> bool:
    with _opened(picture) as image:
        _check_header(image, picture, image.size if scale else size)
        with _readable(picture):
            shown = image.convert("RGBA") if "transparency" in image.info else image
            rgb = shown if shown.mode == "RGB" else shown.convert("RGB")
            target[...] = np.asarray(_center_crop(rgb, size, scale) if scale else rgb).transpose(2, 0, 1)
        return image.mode in _GRAY


def _center_crop(image: Image.Image, size: tuple[int, int], scale: int) -> Image.Image:
    # resize only the part that is kept: resizing an image of 1 x 1,000,000 pixels would take very much memory
    kept = [min(image.size) * side / scale for side in size]
    left, top = (max(0.0, (whole - part) / 2) for whole, part in zip(image.size, kept, strict=True))
    return image.resize(size, Image.Resampling.BILINEAR, box=(left, top, left + kept[0], top + kept[1]))


def _check_header(image: Image.Image, picture: Picture, size: tuple[int, int]) -> None:
    width, height = image.size
    if width * height > _PIXELS:
        raise ValueError(f"{picture.name} has {width}x{height} pixels but at most {_PIXELS} are read; make it smaller")
    if image.size != size:
        raise ValueError(
            f"{picture.name} has {width}x{height} pixels but {size[0]}x{size[1]} are needed; give all images one size"
        )
    if image.mode.startswith(_DEEP):
        raise ValueError(f"{picture.name} has more than 8 bits a channel; save it with 8")


def _opened(picture: Picture) -> Image.Image:
    bytes_ = len(picture.data) if isinstance(picture.data, bytes) else picture.data.stat().st_size
    if bytes_ > _FILE:  # text formats may be read to the end for the first pixel
        raise ValueError(f"{picture.name} has {bytes_} bytes but at most {_FILE} are read; make it smaller")
    with _readable(picture):
        source = BytesIO(picture.data) if isinstance(picture.data, bytes) else picture.data
        return Image.open(source, formats=_FORMATS)


@contextmanager
def _readable(picture: Picture) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a malicious file can raise nearly any exception in Pillow
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "another format or damaged" if unknown else str(error).partition("\n")[0][:200]
        raise ValueError(
            f"{picture.name} cannot be read as a JPEG, PNG, BMP or PPM image ({reason}); repair or remove it"
        ) from error


@contextmanager
def _bombs_refused() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
