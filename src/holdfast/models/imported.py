"""A user's own model: imported by name and loaded with its weights."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.members import unknown
from holdfast.models.layouts import LAYOUTS, published
from holdfast.models.own import raised
from holdfast.models.weights import load_into, read_state
from holdfast.rng import Rng

LIBRARIES = ("timm", "torchvision")
_FORMS = "package.module:callable, timm:NAME, torchvision:NAME or layout:NAME"


@contextmanager
def import_from(folder: str) -> Iterator[None]:
    """Context that puts a folder first on the import path, as Python does for scripts."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(folder)


def build(name: str, weights: Path | None, shape: tuple[int, ...], classes: int | None, seed: int) -> nn.Module:
    """Build the model called ``name`` for samples of this shape and load its weights.

    Without a file, weights depend on the seed alone. ``classes`` is None where their number is not known.
    """
    kind, colon, rest = name.partition(":")
    if not (kind and colon and rest):
        raise ValueError(f"the model is {name!r} but must have one of the forms {_FORMS}")
    state = None if weights is None else read_state(weights)
    if kind == "layout":
        return _published(name, rest, state, shape)
    made = seeded(lambda: _of_library(kind, rest, classes) if kind in LIBRARIES else _of_module(kind, rest), seed)
    if not isinstance(made, nn.Module):
        raise ValueError(f"the model {name} is a {type(made).__name__} but a torch.nn.Module is needed; return one")
    if state is not None:
        load_into(made, state)
    return made.float()


def seeded(make: Callable[[], object], seed: int) -> object:
    """What a function makes, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Rng(seed).fork("weights").seed)
        return make()


def _published(name: str, layout: str, state: Mapping[str, Tensor] | None, shape: tuple[int, ...]) -> nn.Module:
    if layout not in LAYOUTS:
        raise ValueError(unknown(f"layout {layout!r}", layout, LAYOUTS))
    if state is None:
        raise ValueError(f"the model {name} is a published checkpoint; give the file of its weights")
    return published(layout, state, shape).float()


def _of_library(kind: str, name: str, classes: int | None) -> object:
    """A model of timm or torchvision with one output per class, where the number of classes is known."""
    outputs = {} if classes is None else {"num_classes": classes}
    absent = ImportError(f"the model {kind}:{name} needs {kind}, which is not installed; run: pip install {kind}")
    library = _imported("timm" if kind == "timm" else "torchvision.models", absent)
    with naming_errors(f"building {kind}:{name}"):
        if kind == "timm":
            return library.create_model(name, pretrained=False, **outputs)
        return library.get_model(name, weights=None, **outputs)


def _of_module(where: str, path: str) -> object:
    """Look up a name in a module; an ``nn.Module`` is returned as it is, anything else is called."""
    plain = where.removeprefix("./").removesuffix(".py").replace("/", ".")
    hint = "start holdfast in its folder, or install it" if plain == where else f"write {plain}:{path}"
    absent = ValueError(f"the model asks for the module {where}, which is neither in this folder nor installed; {hint}")
    if where.startswith(".") or "/" in where:  # Python would report a different error
        raise absent
    module = target = _imported(where, absent)
    for part in path.split("."):
        if not hasattr(target, part):
            defined = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == where]
            raise ValueError(unknown(f"name {path!r} in the module {where}", path, defined))
        target = getattr(target, part)
    if isinstance(target, nn.Module):
        return deepcopy(target)  # training changes it
    with naming_errors(f"calling {where}:{path} without arguments"):
        return target()


def _imported(name: str, absent: Exception) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise absent from error
        raise ValueError(raised(f"importing {name}", error)) from error
    except (Exception, SystemExit) as error:
        raise ValueError(raised(f"importing {name}", error)) from error


@contextmanager
def naming_errors(doing: str) -> Iterator[None]:
    """Context that turns any error of the user's code into one sentence that says what was being done."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ValueError(raised(doing, error)) from error
