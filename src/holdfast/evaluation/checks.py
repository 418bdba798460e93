"""Checks of a user's own model before it is evaluated or trained, and what identifies it."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from inspect import getsource
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast.attacks._checks import probabilities
from holdfast.contracts import Predictor
from holdfast.crafting.view import frozen
from holdfast.data import DataSet, EvaluationSet
from holdfast.models.imported import LIBRARIES, naming_errors
from holdfast.records.snapshot import digest
from holdfast.rng import Rng

_CHECKED = 8  # samples; enough to see whether the outputs are logits
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")  # memory addresses in the repr of a module differ between processes


@torch.no_grad()
def check_predictor(model: Predictor, data: EvaluationSet) -> bool:
    """True if a callable answers with scores (b, classes), False if with labels (b,); anything else is refused."""
    x = data.test.batch(torch.arange(min(_CHECKED, len(data.test)))).x
    with naming_errors("the model"):
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
        types = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        if types and batch.x.dtype not in types:
            message = f"the model has weights of type {types.pop()} but is given float32; call model.float()"
            raise ValueError(message) from error
        raise ValueError(f"{error} (given {len(batch)} samples of shape {tuple(batch.x.shape[1:])})") from error
    for problem in _problems(logits, data):
        raise ValueError(f"the model {problem}")


def _problems(logits: Tensor, data: DataSet | EvaluationSet) -> Iterator[str]:
    outputs, top = logits.shape[1], int(data.test.y.max())
    finite = logits.isfinite().all(1)  # some samples without an answer are counted as misclassified
    if not finite.any():
        yield "gives NaN or infinite outputs for clean samples; check its weights and its normalization"
    if data.classes is not None and len(data.classes) != outputs:
        yield f"has {outputs} outputs but {data.name} has {len(data.classes)} classes; give data of its own classes"
    if outputs < 2:
        yield "has one output but one for each class is needed; return the logits 0 and z instead of one logit z"
    if top >= outputs:
        yield _few_outputs(outputs, data.name, top)
    if probabilities(logits[finite]):
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
    for kind in sorted({type(part) for part in model.modules()}, key=lambda kind: kind.__qualname__):
        if kind.__module__ == "__main__":  # of a script only the class: the rest of it may change
            with suppress(OSError, TypeError):
                code.update(getsource(kind).encode())
    return {"name": name, "weights": digest(state), "code": code.hexdigest()}


def _files(name: str, model: nn.Module) -> set[str]:
    modules = {name.partition(":")[0], *(type(part).__module__ for part in model.modules())}
    libraries = ("torch", "holdfast", *LIBRARIES)
    own = [module for module in modules if module.partition(".")[0] not in (*libraries, "__main__")]
    files = {getattr(sys.modules.get(module), "__file__", None) for module in own}
    return {file for file in files if file is not None and Path(file).is_file()}
