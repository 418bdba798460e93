"""Finding the files of a data set, verifying checksums and listing folders safely."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

_HOW = "give their folder with --data-dir DIR or in the environment variable HOLDFAST_DATA"
_IGNORED = ("Thumbs.db", "desktop.ini", "__MACOSX")  # created by file managers and archivers


def root(folder: str | Path | None) -> Path | None:
    """Return the given folder, by default the one named by HOLDFAST_DATA."""
    given = folder or os.environ.get("HOLDFAST_DATA")
    return Path(given).expanduser() if given else None


def find(name: str, files: Iterable[str], folder: str | Path | None, *, get: str) -> dict[str, Path]:
    """Return the path of each file, gzipped or plain; all of them are in <root>/<name> or all in <root>.

    ``get`` is the part of the error message that explains how to download missing files.
    """
    files, places = list(files), searched([name], folder)
    for place in places:
        found = {file: path for file in files if (path := _gzipped_or_plain(place, file))}
        if len(found) == len(files):
            return found
    raise FileNotFoundError(missing(name, f"the files {', '.join(files)}, plain or .gz, together", places, get))


def _gzipped_or_plain(place: Path, file: str) -> Path | None:
    return next((path for path in (place / f"{file}.gz", place / file) if path.is_file()), None)


def searched(names: Sequence[str], folder: str | Path | None) -> list[Path]:
    """Return the folders in which files are searched: each <root>/<name>, then <root>; none without a root."""
    top = root(folder)
    return [*(top / name for name in names), top] if top else []


def find_folder(names: Sequence[str], entries: Iterable[str], folder: str | Path | None) -> Path | None:
    """Return the first of <root>/<name> and <root> that has all these entries, or None."""
    entries, places = list(entries), searched(names, folder)
    return next((place for place in places if all((place / entry).exists() for entry in entries)), None)


def missing(name: str, needed: str, places: Sequence[Path], get: str) -> str:
    """Return an error message for missing files: which, where they were searched, and how to get them."""
    looked = f"looked in {' and '.join(map(str, places))}" if places else "no folder was named"
    return f"{name} needs {needed} ({looked}); {get}, then {_HOW}"


def refuse_unpublished(path: Path, found: str, published: str, kind: str) -> None:
    """Raise ValueError if a checksum is not the published one."""
    if found != published:
        raise ValueError(
            f"{path} is not the published file: its {kind} is {found[:16]}… where {published[:16]}… is published; "
            "download it again, or say verify = false to use it as it is"
        )


def listed(folder: Path, top: Path) -> list[Path]:
    """Return the entries of a folder sorted by name, without hidden ones and files of file managers.

    Raise ValueError for symbolic links that lead out of ``top``: a data set must not read files outside its folder.
    """
    if not folder.is_dir() or (folder != top and not _leads_inside(folder, top)):
        raise ValueError(f"{folder} is not a folder inside {top}; put the files themselves there")
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    kept = [entry for entry in found if not entry.name.startswith(".") and entry.name not in _IGNORED]
    for entry in kept:
        if entry.is_symlink() and not _leads_inside(Path(entry.path), top):
            raise ValueError(
                f"{entry.path} is a link that does not lead into {top}; copy what it points to, or remove it"
            )
    return [Path(entry.path) for entry in kept]


def content(path: Path, most: int) -> bytes:
    """Read a file; raise ValueError if it has more than ``most`` bytes."""
    if not path.is_file():  # reading a pipe would block
        raise ValueError(f"{path} is not a file; put the published file there")
    if path.stat().st_size > most:
        raise ValueError(f"{path} has {path.stat().st_size} bytes but at most {most} are read; give the published file")
    return path.read_bytes()


def _leads_inside(link: Path, top: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(top.resolve())
    except (OSError, RuntimeError):  # a broken or circular link
        return False


def plain_files(folder: Path, top: Path) -> list[Path]:
    """Return the files of a folder sorted by name; raise ValueError if it has other entries or none."""
    found = listed(folder, top)
    for path in found:
        if not path.is_file():
            raise ValueError(f"{path} is not a file, but only image files may lie in {folder}; move it elsewhere")
    if not found:
        raise ValueError(f"{folder} holds no file; add images to it or remove the folder")
    return found
