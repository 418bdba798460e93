"""Atomic file writes: a reader sees the old file or the new one, never a part of either."""

import os
from pathlib import Path
from secrets import token_hex


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
