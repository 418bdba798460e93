"""Named data sets in [0, 1] and the samplers that walk through them; a set is a file of this folder with ``load``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from holdfast import members
from holdfast.data import sets
from holdfast.data.readers.files import root
from holdfast.data.samplers import Order, Pool, Positives
from holdfast.data.split import DataSet, EvaluationSet, Split, checked, split_train
from holdfast.members import unknown

__all__ = [
    "DataSet",
    "EvaluationSet",
    "Order",
    "Pool",
    "Positives",
    "Split",
    "about",
    "checked",
    "load",
    "load_test",
    "names",
    "split_train",
]

_ALIASES = {"imagefolder": "image-folder"}  # as torchvision writes it


def _sets() -> dict[str, ModuleType]:
    return {file.replace("_", "-"): import_module(f"{sets.__name__}.{file}") for file in members.names(sets)}


def names() -> list[str]:
    """The data sets that can be named in a recipe."""
    return sorted(_sets())


def about(name: str) -> str:
    """The first sentence on a data set."""
    module = import_module(f"{sets.__name__}.{name.replace('-', '_')}")
    return (module.__doc__ or "").strip().splitlines()[0]


def load(
    name: str, folder: str | Path | None = None, *, valid: float | int = 0.1, seed: int = 0, verify: bool = True
) -> DataSet:
    """The data set of this name, its files under ``folder`` or HOLDFAST_DATA.

    Your own data: ``npz:PATH``, ``image-folder:PATH``, ``libsvm:PATH`` or ``hub:NAME@REVISION``. ``valid`` is the
    share or number of training samples held out for validation, and ``seed`` decides which.
    """
    module, place = _named(name, folder)
    found: DataSet = module.load(place, valid=valid, seed=seed, verify=verify)
    return found


def load_test(
    name: str,
    folder: str | Path | None = None,
    *,
    samples: int | None = None,
    size: tuple[int, int] | None = None,
) -> EvaluationSet:
    """The test part alone of a data set: all of it, or so many samples spread evenly over it.

    Here an image folder may also be a plain folder of classes, and a .npz file may hold x_test and y_test alone.
    ``size`` (scale, cut) fits images of any size: the shorter side is scaled, and the middle square cut out.
    """
    module, place = _named(name, folder)
    scaled = {}
    if size is not None:
        scaled["size"] = size
        if module is not _sets()["image-folder"]:
            raise ValueError(f"{name} cannot be scaled to a size of {size[1]} pixels; only image-folder:PATH can")
    if hasattr(module, "load_test"):
        found: EvaluationSet = module.load_test(place, samples=samples, **scaled)
        return found
    whole: DataSet = module.load(place, valid=0.1, seed=0, verify=True)
    return EvaluationSet(whole.name, whole.test.spread(samples), whole.classes)


def _named(name: str, folder: str | Path | None) -> tuple[ModuleType, Path | None]:
    """The reader of the data set of this name, and where its files are."""
    known = _sets()
    kind, colon, own = name.partition(":")
    kind = _ALIASES.get(kind, kind)
    takes = _takes(known[kind]) if kind in known else None
    if kind not in known or (colon and not takes):
        listed = [f"{one}:{takes}" if (takes := _takes(known[one])) else one for one in known]
        raise ValueError(unknown(f"data set {name!r}", name, listed))
    if not colon:
        return known[kind], Path(folder).expanduser() if folder else None
    return known[kind], _own_path(own, folder) if takes == "PATH" else Path(own)


def _takes(module: ModuleType) -> str | None:
    """What follows the colon in the name of a set of your own."""
    return getattr(module, "TAKES", None)


def _own_path(given: str, folder: str | Path | None) -> Path:
    top, path = root(folder), Path(given).expanduser()
    return top / path if top and (top / path).exists() else path
