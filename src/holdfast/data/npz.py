"""Your own arrays: x_train, y_train, x_test, y_test and, if you like, x_valid, y_valid in one .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data.split import DataSet, data_set

TAKES = "PATH"

_Array = np.ndarray[Any, np.dtype[Any]]
_NEEDED = ("x_train", "y_train", "x_test", "y_test")
_VALID = ("x_valid", "y_valid")


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """The arrays of the .npz file at ``folder``; x is (n, channels, height, width) or (n, features).

    A validation part in the file is used as it is, else ``valid`` is held out of train. Nothing is published, so
    ``verify`` is moot.
    """
    if folder is None or not folder.is_file():
        raise FileNotFoundError(f"there is no .npz file at {folder}; name one as npz:PATH")
    raw = _read(folder)
    classes = len(np.unique(raw["y_train"]))  # so a gap in the labels is a label out of range
    arrays = {name: _tensor(folder, name, array) for name, array in raw.items()}
    parts = {
        part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "valid", "test") if f"x_{part}" in arrays
    }
    return data_set(f"npz:{folder.name}", parts, tuple(map(str, range(classes))), valid=valid, seed=seed)


def _read(path: Path) -> dict[str, _Array]:
    try:
        held = _arrays(path)
    except Exception as error:  # a hostile file can raise nearly anything inside numpy and zipfile
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read as plain arrays ({reason}); save it with numpy.savez") from error
    missing = [name for name in _NEEDED + (_VALID if set(_VALID) & set(held) else ()) if name not in held]
    if missing:
        has = ", ".join(held) or "none that are known"
        raise ValueError(f"{path} lacks {', '.join(missing)} and has {has}; save all of them with numpy.savez")
    return held


def _arrays(path: Path) -> dict[str, _Array]:
    with path.open("rb") as stream:  # opened here: numpy leaves a damaged file open
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array without a name")
        return {name: file[name] for name in _NEEDED + _VALID if name in file.files}


def _tensor(path: Path, name: str, array: _Array) -> Tensor:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(f"{name} of {path} has type {array.dtype}; give integers for y, uint8 or float32 for x")
    if array.dtype == np.uint8 and name.startswith("x_") and array.size and array.max() == 1:
        raise ValueError(f"{name} of {path} is uint8 but ends at 1, not 255; save values in [0, 1] as float32")
    whole_labels = name.startswith("y_") and array.dtype.kind in "iu"
    native = np.dtype(np.int64) if whole_labels else array.dtype.newbyteorder("=")
    return torch.from_numpy(array.astype(native, order="C", copy=False))
