"""A classifier is normalize, encoder, head; ``adapt`` opens any module the same way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Model, Outputs

LOGITS = "logits"


class Normalize(nn.Module):
    """(x - mean) / std per channel, inside the model so that eps keeps its pixel units."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class PerImage(nn.Module):
    """Every image minus its own mean, over its own deviation; gradients flow through both (Madry et al. 2018, TLA).

    This is TensorFlow's standardization of 0..255 pixels, so the deviation of n pixels in [0, 1] is at least
    1 / (255 sqrt(n)).
    """

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = 1 / (255**2 * flat.shape[1])
        centred = flat - flat.mean(1, keepdim=True)
        # not torch's var, which warns where no sample is left to attack; the floor is under the root, whose infinite
        # slope at 0 would make a constant image's gradient NaN
        std = centred.square().mean(1, keepdim=True).clamp_min(least).sqrt()
        return (centred / std).reshape(x.shape)


class Classifier(nn.Module):
    """normalize -> encoder -> head. The encoder's output is the representation (the penultimate layer)."""

    def __init__(self, encoder: nn.Module, head: nn.Module, normalize: nn.Module | None = None) -> None:
        super().__init__()
        self.normalize = nn.Identity() if normalize is None else normalize
        self.encoder = encoder
        self.head = head

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features and logits of one pass. ``layer``: None (the penultimate), ``"logits"`` or a module's name."""
        if layer in (None, LOGITS):
            features = self.encoder(self.normalize(x))
            logits = self.head(features)
            return Outputs(x, logits if layer == LOGITS else features, logits)
        with _capture(_named(self, str(layer))) as caught:
            logits = self.head(self.encoder(self.normalize(x)))
        return Outputs(x, _caught(caught, str(layer)), logits)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.encoder(self.normalize(x)))
        return logits


def as_written(model: nn.Module) -> TypeGuard[Classifier]:
    """Whether a model is a classifier whose passes are those written here, not those of a class made of it."""
    own = type(model)
    return issubclass(own, Classifier) and own.forward is Classifier.forward and own.outputs is Classifier.outputs


class Adapted(nn.Module):
    """Any module that maps inputs to logits, with its representation open; see :func:`adapt`."""

    def __init__(self, module: nn.Module, layer: str | None) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        if layer not in (None, LOGITS):
            _named(module, str(layer))

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features and logits of one pass; ``layer`` overrides the one chosen at adaptation."""
        layer = layer or self.layer
        if layer == LOGITS:
            logits = self(x)
            return Outputs(x, logits, logits)
        if layer is not None:
            with _capture(_named(self.module, layer)) as caught:
                logits = self(x)
            return Outputs(x, _caught(caught, layer), logits)
        with linear_calls(self.module) as calls:
            logits = self(x)
        return Outputs(x, calls[-1].given.flatten(1) if calls else logits, logits)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, also of modules that return an object with ``.logits``."""
        out = self.module(x)
        logits = getattr(out, "logits", out)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x):
            given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"the model returned {given} for {len(x)} inputs but logits of shape ({len(x)}, classes) are needed; "
                "wrap it so that it returns them or an object with .logits"
            )
        return logits


def adapt(module: nn.Module, layer: str | None = None) -> Model:
    """Give any module the features / logits split: ``adapt(net).outputs(x)``.

    Features are the input of the last Linear layer that runs, or the output of the module named by ``layer``
    (``"logits"`` for the logits themselves). A network in which no Linear layer runs has its logits as features.
    """
    named = "outputs" in dict(module.named_children())  # a user's layer may have that name
    inherited = getattr(type(module), "outputs", None) is Classifier.outputs  # which knows of no other forward pass
    known = layer is None and not named and (as_written(module) or not inherited)
    return module if known and isinstance(module, Model) else Adapted(module, layer)


def _named(module: nn.Module, layer: str) -> nn.Module:
    known = dict(module.named_modules())
    if layer not in known:
        raise ValueError(f"the model has no layer {layer!r}; it has {', '.join(name for name in known if name)}")
    found: nn.Module = known[layer]
    return found


def _caught(caught: list[Tensor], layer: str) -> Tensor:
    if not caught:
        raise ValueError(f"layer {layer!r} did not run in the forward pass, so it has no features")
    if not isinstance(caught[-1], Tensor):
        raise ValueError(
            f"layer {layer!r} gave a {type(caught[-1]).__name__} but features are needed; name another layer"
        )
    return caught[-1].flatten(1)


@contextmanager
def _capture(module: nn.Module) -> Iterator[list[Tensor]]:
    caught: list[Tensor] = []

    def note(_module: nn.Module, _args: object, out: Tensor) -> None:
        caught.append(out.clone() if isinstance(out, Tensor) else out)  # the next layer may work in place

    handle = module.register_forward_hook(note)
    try:
        yield caught
    finally:
        handle.remove()


class LinearCall(NamedTuple):
    """One call of a linear layer: what it was given and what it gave."""

    layer: nn.Linear
    given: Tensor
    gave: Tensor


@contextmanager
def linear_calls(module: nn.Module) -> Iterator[list[LinearCall]]:
    """The calls of a module's linear layers in this context, in their order."""
    calls: list[LinearCall] = []

    def note(layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], gave: Tensor) -> None:
        calls.append(LinearCall(cast(nn.Linear, layer), (*args, *named.values())[0], gave))

    linears = (m for m in module.modules() if isinstance(m, nn.Linear))
    handles = [m.register_forward_hook(note, with_kwargs=True) for m in linears]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
