"""Named data sets in [0, 1] and the samplers that walk through them; a set is a file of this folder with ``load``."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast

from holdfast.data._files import root
from holdfast.data.samplers import Order, Pool, Positives
from holdfast.data.split import DataSet, Split, checked, split_train

__all__ = ["DataSet", "Order", "Pool", "Positives", "Split", "about", "checked", "load", "names", "split_train"]


class _Load(Protocol):
    def __call__(self, folder: Path | None, *, valid: float | int, seed: int, verify: bool) -> DataSet: ...


def _loaders() -> dict[str, _Load]:
    files = [info.name for info in iter_modules(__path__) if not info.name.startswith("_")]
    modules = {file.replace("_", "-"): import_module(f"{__name__}.{file}") for file in files}
    return {name: cast(_Load, module.load) for name, module in modules.items() if hasattr(module, "load")}


def names() -> list[str]:
    """The data sets that can be named in a recipe."""
    return sorted(_loaders())


def about(name: str) -> str:
    """The first sentence on a data set."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return (module.__doc__ or "").strip().splitlines()[0]


def load(
    name: str, folder: str | Path | None = None, *, valid: float | int = 0.1, seed: int = 0, verify: bool = True
) -> DataSet:
    """The data set of this name (``npz:PATH`` for your own arrays), its files under ``folder`` or HOLDFAST_DATA.

    ``valid`` is the share or number of training samples held out for validation, and ``seed`` decides which.
    """
    loaders = _loaders()
    if name.startswith("npz:"):
        return loaders["npz"](_own_file(name.removeprefix("npz:"), folder), valid=valid, seed=seed, verify=verify)
    if name not in loaders:
        near = get_close_matches(name, loaders, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them"
        known = ", ".join("npz:PATH" if one == "npz" else one for one in sorted(loaders))
        raise ValueError(f"no data set is called {name!r}; there are {known}; {hint}")
    place = Path(folder).expanduser() if folder else None
    return loaders[name](place, valid=valid, seed=seed, verify=verify)


def _own_file(file: str, folder: str | Path | None) -> Path:
    top, path = root(folder), Path(file).expanduser()
    return top / path if top and (top / path).is_file() else path
