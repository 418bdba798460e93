"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step; an error up to that step leaves the old file and nothing beside it."""
    part = path.with_name(f".{token_hex(8)}.part")  # a name of its own: two writers must not share half a file
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
    """Replace ``path`` by ``text`` in UTF-8, in one step."""
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
