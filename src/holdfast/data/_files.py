"""Where the files of a data set are looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_HOW = "give their folder with --data-dir DIR or in the environment variable HOLDFAST_DATA"


def root(folder: str | Path | None) -> Path | None:
    """The folder given, else the one that HOLDFAST_DATA names."""
    given = folder or os.environ.get("HOLDFAST_DATA")
    return Path(given).expanduser() if given else None


def find(name: str, files: Iterable[str], folder: str | Path | None) -> dict[str, Path]:
    """The path of each file, gzipped or plain, in <root>/<name> or in <root>; all come from one of the two."""
    files, top = list(files), root(folder)
    places = [top / name, top] if top else []
    for place in places:
        found = {file: path for file in files if (path := _either(place, file))}
        if len(found) == len(files):
            return found
    looked = f"looked in {' and '.join(map(str, places))}" if places else "no folder was named"
    raise FileNotFoundError(f"{name} needs the files {', '.join(files)}, plain or .gz, together ({looked}); {_HOW}")


def _either(place: Path, file: str) -> Path | None:
    return next((path for path in (place / f"{file}.gz", place / file) if path.is_file()), None)
