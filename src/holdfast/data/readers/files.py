"""Where the files of a data set are looked for, and what a folder of them may hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

_HOW = "give their folder with --data-dir DIR or in the environment variable HOLDFAST_DATA"
_LITTER = ("Thumbs.db", "desktop.ini", "__MACOSX")  # what file managers and archivers leave behind


def root(folder: str | Path | None) -> Path | None:
    """The folder given, else the one that HOLDFAST_DATA names."""
    given = folder or os.environ.get("HOLDFAST_DATA")
    return Path(given).expanduser() if given else None


def find(name: str, files: Iterable[str], folder: str | Path | None, *, get: str) -> dict[str, Path]:
    """The path of each file, gzipped or plain, in <root>/<name> or in <root>; all come from one of the two.

    ``get`` says, in a message about files that are not there, how one comes by them.
    """
    files, top = list(files), root(folder)
    places = [top / name, top] if top else []
    for place in places:
        found = {file: path for file in files if (path := _either(place, file))}
        if len(found) == len(files):
            return found
    raise FileNotFoundError(missing(name, f"the files {', '.join(files)}, plain or .gz, together", places, get))


def _either(place: Path, file: str) -> Path | None:
    return next((path for path in (place / f"{file}.gz", place / file) if path.is_file()), None)


def find_folder(names: Sequence[str], entries: Iterable[str], folder: str | Path | None) -> Path | None:
    """The first of <root>/<name> and <root> that has all these entries."""
    entries, top = list(entries), root(folder)
    places = [*(top / name for name in names), top] if top else []
    return next((place for place in places if all((place / entry).exists() for entry in entries)), None)


def missing(name: str, needed: str, places: Sequence[Path], get: str) -> str:
    """What to say when files are not there: which, where they were looked for, and how to get them."""
    looked = f"looked in {' and '.join(map(str, places))}" if places else "no folder was named"
    return f"{name} needs {needed} ({looked}); {get}, then {_HOW}"


def refuse_unpublished(path: Path, found: str, published: str, kind: str) -> None:
    """A ValueError if the checksum found is not the published one."""
    if found != published:
        raise ValueError(
            f"{path} is not the published file: its {kind} is {found[:16]}… where {published[:16]}… is published; "
            "download it again, or say verify = false to use it as it is"
        )


def listed(folder: Path, top: Path) -> list[Path]:
    """What a folder holds, by name, without hidden entries and the litter of file managers.

    A link that leads out of ``top`` is refused: a data set must not read what lies beside it.
    """
    if not folder.is_dir() or (folder != top and not _leads_inside(folder, top)):
        raise ValueError(f"{folder} is not a folder inside {top}; put the files themselves there")
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    kept = [entry for entry in found if not entry.name.startswith(".") and entry.name not in _LITTER]
    for entry in kept:
        if entry.is_symlink() and not _leads_inside(Path(entry.path), top):
            raise ValueError(
                f"{entry.path} is a link that does not lead into {top}; copy what it points to, or remove it"
            )
    return [Path(entry.path) for entry in kept]


def content(path: Path, most: int) -> bytes:
    """The bytes of a file that has at most this many."""
    if not path.is_file():  # a pipe would be waited on for ever
        raise ValueError(f"{path} is not a file; put the published file there")
    if path.stat().st_size > most:
        raise ValueError(f"{path} has {path.stat().st_size} bytes but at most {most} are read; give the published file")
    return path.read_bytes()


def _leads_inside(link: Path, top: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(top.resolve())
    except (OSError, RuntimeError):  # it leads nowhere, or in a circle
        return False


def plain_files(folder: Path, top: Path) -> list[Path]:
    """The files of a folder, by name; anything else in it is refused."""
    found = listed(folder, top)
    for path in found:
        if not path.is_file():
            raise ValueError(f"{path} is not a file, but only image files may lie in {folder}; move it elsewhere")
    if not found:
        raise ValueError(f"{folder} holds no file; add images to it or remove the folder")
    return found
