"""Reads and writes the files of a run; a reader sees the old file or the new one, never a part of either.

A missing or damaged JSON file is an error that says what to do; damaged arrays are treated as missing, since they can
be computed again.
"""

import io
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` with ``data`` atomically; after an error the old file is unchanged and no other file is left."""
    part = path.with_name(f".{token_hex(8)}.part")  # unique: two writers must not write to one file
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` with ``text`` in UTF-8, atomically."""
    write_bytes(path, text.encode())


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power failure; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    content = _parsed(path, _text(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (it holds no object); remove {path.parent} and run again")
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of one JSON object per line."""
    return [cast(dict[str, Any], _parsed(path, line)) for line in _text(path).splitlines()]


def read_arrays(path: Path, needed: Collection[str]) -> dict[str, NDArray[Any]] | None:
    """The arrays of a .npz file; None if it is missing, damaged or lacks one of ``needed``."""
    if not path.is_file():
        return None
    try:
        # opened here: np.load does not close damaged files
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return arrays if set(needed) <= arrays.keys() else None
    except Exception:  # a damaged file raises nearly anything inside numpy and zipfile
        return None


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as .npz, atomically."""
    with io.BytesIO() as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
        write_bytes(path, file.getvalue())


def _text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; remove {path.parent} and run again")
    return path.read_text(encoding="utf-8")


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove {path.parent} and run again") from None
