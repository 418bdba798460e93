"""Plain arrays in .npz files; nothing in them is unpickled."""

import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_Array = np.ndarray[Any, np.dtype[Any]]
_BYTES = 1 << 33  # of all arrays, which are held in memory: a small zip file can decompress to far more


def read_examples(path: Path) -> Tensor:
    """The array x_adv of a .npz file: adversarial examples, one for each sample of a test set, in its order."""
    return read(existing(path), ("x_adv",), ())["x_adv"]


def existing(folder: Path | None) -> Path:
    """The path of a .npz file that is there."""
    if folder is None or not folder.is_file():
        raise FileNotFoundError(f"there is no .npz file at {folder}; name one as npz:PATH")
    return folder


def read(path: Path, needed: Sequence[str], optional: Sequence[str]) -> dict[str, Tensor]:
    """Read the needed arrays, and either all or none of the optional ones."""
    try:
        arrays = _arrays(path, (*needed, *optional))
    except Exception as error:  # a malicious file can raise nearly any exception in numpy and zipfile
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read as plain arrays ({reason}); save it with numpy.savez") from error
    missing = [name for name in (*needed, *(optional if set(optional) & set(arrays) else ())) if name not in arrays]
    if missing:
        has = ", ".join(arrays) or "none that are known"
        raise ValueError(f"{path} lacks {', '.join(missing)} and has {has}; save all of them with numpy.savez")
    return {name: _tensor(path, name, array) for name, array in arrays.items()}


def _arrays(path: Path, wanted: Sequence[str]) -> dict[str, _Array]:
    with path.open("rb") as stream:  # opened here, because numpy does not close damaged files
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it holds a single array without a name")
        with zipfile.ZipFile(stream) as archive:
            files = {f"{name}.npy": name for name in wanted}
            here = {files[one.filename]: one for one in archive.infolist() if one.filename in files}
            promised = sum(member.file_size for member in here.values())
            if promised > _BYTES:
                raise ValueError(f"it unpacks to {promised} bytes but at most {_BYTES} are held in memory")
            return {name: _array(archive, here[name]) for name in wanted if name in here}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> _Array:
    """Read one array; its header must agree with the size in the archive before memory is allocated."""
    formats = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(member) as stream:
        shape, _, kind = formats[np.lib.format.read_magic(stream)](stream)
        body = member.file_size - stream.tell()
        if not kind.hasobject and prod(shape) * kind.itemsize != body:
            raise ValueError(f"{member.filename} promises {prod(shape) * kind.itemsize} bytes but holds {body}")
    with archive.open(member) as stream:
        found: _Array = np.lib.format.read_array(stream, allow_pickle=False)
        return found


def _tensor(path: Path, name: str, array: _Array) -> Tensor:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} of {path} has type {array.dtype}; give integers for y, uint8 or float32 for x")
    if array.dtype == np.uint8 and name.startswith("x_") and array.size and array.max() == 1:
        raise ValueError(f"{name} of {path} is uint8 but ends at 1, not 255; save values in [0, 1] as float32")
    whole_labels = name.startswith("y_") and array.dtype.kind in "iu"
    native = np.dtype(np.int64) if whole_labels else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(native, order="C", copy=False))
