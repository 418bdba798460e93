"""Provenance of results: versions of the code and of the libraries, and the commit."""

import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = ("holdfast", "torch", "numpy", "scikit-learn", "lightning-fabric")
# code that every computation may use
_EVERYWHERE = ("contracts.py", "geometry.py", "mahalanobis.py", "neighbors.py", "norms.py", "rng.py")

_NOT_COMPUTING = ("recipes", "records", "report", "run")  # their code changes no result
_COMPUTING = tuple(
    sorted(path.name for path in _PACKAGE.iterdir() if path.is_dir() and path.name not in _NOT_COMPUTING)
)

Maker = Mapping[str, Any]
"""What computed a result: the version of the code, of the libraries, and the commit, as JSON values."""


@cache
def code_version(*parts: str) -> str:
    """A digest of the source files of these folders or modules of the package, and of torch's version.

    Results are stored under this version, so that they are computed again when the code changes.
    """
    paths = [_PACKAGE / part for part in (*_EVERYWHERE, *parts)]
    files = {file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])}
    digest = sha256(torch.__version__.encode())
    for file in sorted(files):
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """The versions of Python, holdfast and the numerical libraries, and the number of threads."""
    machine = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    return machine | _libraries() | {"threads": str(torch.get_num_threads())}


@cache
def _libraries() -> dict[str, str]:
    return {name: version(name) for name in _LIBRARIES}


@cache
def commit() -> str | None:
    """The commit of holdfast's source; None if it does not run from a git checkout."""
    checkout = _PACKAGE.parents[1]
    if not (checkout / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def computing_code() -> str:
    """The version of all code that computes results: everything except commands, recipes and reports."""
    return code_version(*_COMPUTING)


def maker() -> Maker:
    """The maker of results in this process."""
    return {"code": computing_code(), "versions": versions(), "commit": commit()}


def distinct(makers: Iterable[Maker]) -> list[Maker]:
    """The makers without duplicates, in order of first appearance."""
    unique: list[Maker] = []
    for maker in makers:
        if maker not in unique:
            unique.append(maker)
    return unique
