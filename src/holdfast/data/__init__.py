"""Named data sets with samples in [0, 1], samplers and augmentation.

Each module of :mod:`holdfast.data.sets` with a function ``load`` is a data set; its name is the name of the module.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from holdfast import members
from holdfast.data import sets
from holdfast.data.readers.files import root
from holdfast.data.samplers import Order as Order
from holdfast.data.samplers import Pool as Pool
from holdfast.data.samplers import Positives as Positives
from holdfast.data.split import DataSet as DataSet
from holdfast.data.split import EvaluationSet as EvaluationSet
from holdfast.data.split import Split as Split
from holdfast.members import unknown

_ALIASES = {"imagefolder": "image-folder"}  # torchvision's spelling


def names() -> list[str]:
    """Return the names of the data sets."""
    return sorted(file.replace("_", "-") for file in members.names(sets))


def about(name: str) -> str:
    """Return a one-line description of a data set."""
    return (_module(name).__doc__ or "").strip().splitlines()[0]


def load(
    name: str,
    folder: str | Path | None = None,
    *,
    valid: float | int = 0.1,
    seed: int = 0,
    verify: bool = True,
    size: tuple[int, int] | None = None,
) -> DataSet:
    """Load a data set by name, from files in ``folder`` or in the folder named by HOLDFAST_DATA.

    Load your own data with ``npz:PATH``, ``image-folder:PATH``, ``libsvm:PATH`` or ``hub:NAME@REVISION``. ``valid`` is
    the fraction or number of training samples held out for validation, selected by ``seed``. ``size`` = (resize, crop)
    accepts images of any size: the shorter side is resized and the center is cropped.
    """
    module, place = _find(name, folder)
    found: DataSet = module.load(place, valid=valid, seed=seed, verify=verify, **_scaled(name, module, size))
    return found


def load_test(
    name: str,
    folder: str | Path | None = None,
    *,
    samples: int | None = None,
    size: tuple[int, int] | None = None,
) -> EvaluationSet:
    """Load only the test set: all samples, or ``samples`` of them, evenly spaced.

    An image folder may also be a folder of classes without train and test, and a .npz file may contain only x_test and
    y_test. ``size`` = (resize, crop) accepts images of any size: the shorter side is resized and the center is cropped.
    """
    module, place = _find(name, folder)
    scaled = _scaled(name, module, size)
    if hasattr(module, "load_test"):
        found: EvaluationSet = module.load_test(place, samples=samples, **scaled)
        return found
    whole: DataSet = module.load(place, valid=0.1, seed=0, verify=True)
    return EvaluationSet(whole.name, whole.test.spread(samples), whole.classes)


def _scaled(name: str, module: ModuleType, size: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """The option that scales images, refused for a data set that has none."""
    if size is not None and module is not _module("image-folder"):
        raise ValueError(f"{name} cannot be scaled to a size of {size[1]} pixels; only image-folder:PATH can")
    return {} if size is None else {"size": size}


def _find(name: str, folder: str | Path | None) -> tuple[ModuleType, Path | None]:
    kind, colon, argument = name.partition(":")
    kind = _ALIASES.get(kind, kind)
    takes = _takes(kind) if kind in names() else None
    if kind not in names() or (colon and not takes):
        listed = [f"{one}:{takes}" if (takes := _takes(one)) else one for one in names()]
        raise ValueError(unknown(f"data set {name!r}", name, listed))
    if not colon:
        return _module(kind), Path(folder).expanduser() if folder else None
    if takes != "PATH":
        return _module(kind), Path(argument)
    top, path = root(folder), Path(argument).expanduser()
    return _module(kind), top / path if top and (top / path).exists() else path


def _module(name: str) -> ModuleType:
    return import_module(f"{sets.__name__}.{name.replace('-', '_')}")


def _takes(name: str) -> str | None:
    """Return what the name of a data set takes after a colon, e.g. PATH."""
    return getattr(_module(name), "TAKES", None)
