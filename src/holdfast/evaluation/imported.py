"""A user's own model: imported by name, loaded with its weights, and checked before it is evaluated."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.contracts import Predictor
from holdfast.crafting.view import frozen
from holdfast.data import DataSet, EvaluationSet
from holdfast.members import unknown
from holdfast.models.layouts import LAYOUTS, published
from holdfast.models.weights import load_into, read_state
from holdfast.records.snapshot import digest
from holdfast.rng import Rng

_FORMS = "package.module:callable, timm:NAME, torchvision:NAME or layout:NAME"
_LIBRARIES = ("timm", "torchvision")
_CHECKED = 8  # samples; enough to see whether the outputs are logits
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")  # memory addresses in the repr of a module differ between processes


class Own(nn.Module):
    """A user's network after the normalization it was trained with; its errors are reported as errors of the model.

    Attacks and certifiers are given this module, not the network inside: it takes inputs in [0, 1] and returns what
    ``network`` returns for ``normalize`` of them. Without a normalization ``normalize`` is ``nn.Identity()``.
    """

    def __init__(self, network: nn.Module, normalize: nn.Module | None = None) -> None:
        super().__init__()
        self.normalize = nn.Identity() if normalize is None else normalize
        self.network = network

    def forward(self, x: Tensor) -> Any:
        """The output of the network: logits, or an object with ``.logits``."""
        try:
            return self.network(self.normalize(x))
        except Exception as error:
            raise RuntimeError(_raised("the model", error)) from error


@contextmanager
def import_from(folder: str) -> Iterator[None]:
    """Context that puts a folder first on the import path, as Python does for scripts."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(folder)


def build(name: str, weights: Path | None, data: DataSet | EvaluationSet, seed: int) -> nn.Module:
    """Build the model called ``name`` and load its weights; without a file, weights depend on the seed alone."""
    kind, colon, rest = name.partition(":")
    if not (kind and colon and rest):
        raise ValueError(f"--model is {name!r} but must have one of the forms {_FORMS}")
    if weights is None and kind in (*_LIBRARIES, "layout"):
        raise ValueError(
            f"--model {name} would have random weights, which are not worth evaluating; give --weights FILE"
        )
    state = None if weights is None else read_state(weights)
    if kind == "layout":
        if rest not in LAYOUTS:
            raise ValueError(unknown(f"layout {rest!r} in --model", rest, LAYOUTS))
        return published(rest, state or {}, tuple(data.test.x.shape[1:])).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Rng(seed).fork("weights").seed)
        made = _of_library(kind, rest, data) if kind in _LIBRARIES else _of_module(kind, rest)
    if not isinstance(made, nn.Module):
        raise ValueError(f"--model {name} gave a {type(made).__name__} but a torch.nn.Module is needed; return one")
    if state is not None:
        load_into(made, state)
    return made.float()


def _of_library(kind: str, name: str, data: DataSet | EvaluationSet) -> object:
    """A model of timm or torchvision with one output per class, where the number of classes is known."""
    outputs = {} if data.classes is None else {"num_classes": len(data.classes)}
    absent = ImportError(f"--model {kind}:{name} needs {kind}, which is not installed; run: pip install {kind}")
    library = _imported("timm" if kind == "timm" else "torchvision.models", absent)
    with _naming_errors(f"building {kind}:{name}"):
        if kind == "timm":
            return library.create_model(name, pretrained=False, **outputs)
        return library.get_model(name, weights=None, **outputs)


def _of_module(where: str, path: str) -> object:
    """Look up a name in a module; an ``nn.Module`` is returned as it is, anything else is called."""
    plain = where.removeprefix("./").removesuffix(".py").replace("/", ".")
    hint = "start holdfast in its folder, or install it" if plain == where else f"write {plain}:{path}"
    absent = ValueError(f"--model asks for the module {where}, which is neither in this folder nor installed; {hint}")
    if where.startswith(".") or "/" in where:  # Python would report a different error
        raise absent
    module = target = _imported(where, absent)
    for part in path.split("."):
        if not hasattr(target, part):
            defined = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == where]
            raise ValueError(unknown(f"name {path!r} in the module {where}", path, defined))
        target = getattr(target, part)
    if isinstance(target, nn.Module):
        return target
    with _naming_errors(f"calling {where}:{path} without arguments"):
        return target()


def _imported(name: str, absent: Exception) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise absent from error
        raise ValueError(_raised(f"importing {name}", error)) from error
    except (Exception, SystemExit) as error:
        raise ValueError(_raised(f"importing {name}", error)) from error


@contextmanager
def _naming_errors(doing: str) -> Iterator[None]:
    """Context that turns any error of the user's code into one sentence that says what was being done."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ValueError(_raised(doing, error)) from error


def _raised(doing: str, error: BaseException) -> str:
    message = " ".join(str(error).split())[:300]
    return f"{doing} raised {type(error).__name__}" + (f": {message}" if message else "")


@torch.no_grad()
def check_predictor(model: Predictor, data: EvaluationSet) -> bool:
    """True if a callable answers with scores (b, classes), False if with labels (b,); anything else is refused."""
    x = data.test.batch(torch.arange(min(_CHECKED, len(data.test)))).x
    with _naming_errors("the model"):
        out = model(x)
    scores = isinstance(out, Tensor) and out.ndim == 2 and out.shape[1] > 1 and out.is_floating_point()
    labels = isinstance(out, Tensor) and out.ndim == 1 and not out.is_floating_point()
    if not (scores or labels) or len(out) != len(x):
        given = f"{out.dtype} of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"the model returned {given} for {len(x)} inputs but scores of shape ({len(x)}, classes) or integer labels "
            f"of shape ({len(x)},) are needed; wrap it so that it returns one of them"
        )
    top = int(data.test.y.max())
    if scores and top >= out.shape[1]:
        raise ValueError(f"the model {_few_outputs(out.shape[1], data.name, top)}")
    return scores


@torch.no_grad()
def check_model(model: nn.Module, data: DataSet | EvaluationSet, device: torch.device) -> None:
    """Refuse a model that cannot process the samples or whose outputs are not logits of their classes."""
    batch = data.test.batch(torch.arange(min(_CHECKED, len(data.test))), device)
    try:
        with frozen(model, Rng(0)) as view:
            logits = view(batch.x)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{error} (given {len(batch)} samples of shape {tuple(batch.x.shape[1:])})") from error
    for problem in _problems(logits, data):
        raise ValueError(f"the model {problem}")


def _problems(logits: Tensor, data: DataSet | EvaluationSet) -> Iterator[str]:
    outputs, top = logits.shape[1], int(data.test.y.max())
    if not logits.isfinite().all():
        yield "gives NaN or infinite outputs for clean samples; check its weights and its normalization"
    if data.classes is not None and len(data.classes) != outputs:
        yield f"has {outputs} outputs but {data.name} has {len(data.classes)} classes; give data of its own classes"
    if outputs < 2:
        yield "has one output but one for each class is needed; return the logits 0 and z instead of one logit z"
    if top >= outputs:
        yield _few_outputs(outputs, data.name, top)
    if (logits >= 0).all() and (logits.sum(1) - 1).abs().max() < 1e-3:
        yield (
            "seems to give probabilities (each row adds up to 1) but attacks need logits, else gradients vanish and "
            "it looks more robust than it is; leave its softmax out"
        )


def _few_outputs(outputs: int, name: str, top: int) -> str:
    return f"has {outputs} outputs but {name} has labels up to {top}; give data of its own classes"


def identity(name: str, model: nn.Module) -> dict[str, str]:
    """What identifies a model: its name and digests of its weights and its code.

    Weights are all tensors of the model, including non-persistent buffers. The code is the repr of the network and the
    source files of its classes and of the function that builds it: the same weights may belong to another model.
    """
    tensors = dict(model.named_buffers()) | model.state_dict()
    state = {key: value for key, value in tensors.items() if isinstance(value, Tensor)}
    code = sha256(_ADDRESS.sub("", str(model)).encode())
    for file in sorted(_files(name, model)):
        code.update(Path(file).read_bytes())
    return {"name": name, "weights": digest(state), "code": code.hexdigest()}


def _files(name: str, model: nn.Module) -> set[str]:
    modules = {name.partition(":")[0], *(type(part).__module__ for part in model.modules())}
    libraries = ("torch", "holdfast", *_LIBRARIES)
    own = [module for module in modules if module.partition(".")[0] not in libraries]
    files = {getattr(sys.modules.get(module), "__file__", None) for module in own}
    return {file for file in files if file is not None and Path(file).is_file()}
