"""Classifiers composed of normalization, encoder and head; ``adapt`` gives any module the same interface."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn

from holdfast.contracts import Model, Outputs
from holdfast.models.own import Own, bare

LOGITS = "logits"
FEATURES = "features"


class Normalize(nn.Module):
    """Normalize channels as (x - mean) / std. As a layer of the model it keeps eps in units of pixels."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class PerImage(nn.Module):
    """Standardize every image by its own mean and standard deviation (Madry et al. 2018, TLA).

    This is TensorFlow's ``per_image_standardization`` of pixels in 0..255: for n pixels in [0, 1] the standard
    deviation is at least 1 / (255 sqrt(n)). Gradients flow through mean and standard deviation.
    """

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = 1 / (255**2 * flat.shape[1])
        centered = flat - flat.mean(1, keepdim=True)
        # not torch.var, which warns for empty batches; clamped before the root, whose infinite derivative at 0 would
        # make the gradient of a constant image NaN
        std = centered.square().mean(1, keepdim=True).clamp_min(least).sqrt()
        return (centered / std).reshape(x.shape)


class Classifier(nn.Module):
    """A classifier: normalize -> encoder -> head. The output of the encoder is the feature vector."""

    def __init__(self, encoder: nn.Module, head: nn.Module, normalize: nn.Module | None = None) -> None:
        super().__init__()
        for name, part in (("encoder", encoder), ("head", head), ("normalize", normalize or nn.Identity())):
            _check_part(part, f"the {name}")
        self.normalize = nn.Identity() if normalize is None else normalize
        self.encoder = encoder
        self.head = head

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Return features and logits of one forward pass.

        ``layer`` chooses the features: None for the input of the head, ``"logits"``, or the name of a module.
        """
        if layer in (None, LOGITS):
            features = self.encoder(self.normalize(x))
            logits = self.head(features)
            return Outputs(x, logits if layer == LOGITS else features, logits)
        with _capture_output(_module(self, str(layer))) as captured:
            logits = self.head(self.encoder(self.normalize(x)))
        return Outputs(x, _features(captured, str(layer)), logits)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.normalize(x)))
        return logits


def as_written(model: nn.Module) -> TypeGuard[Classifier]:
    """Return whether a model is a :class:`Classifier` whose ``forward`` and ``outputs`` are not overridden."""
    kind = type(model)
    return issubclass(kind, Classifier) and kind.forward is Classifier.forward and kind.outputs is Classifier.outputs


class Adapted(nn.Module):
    """A module that maps inputs to logits, with access to its features; see :func:`adapt`."""

    def __init__(self, module: nn.Module, layer: str | None) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        if layer not in (None, LOGITS):
            _module(module, str(layer))

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Return features and logits of one forward pass; ``layer`` overrides the one given to :func:`adapt`."""
        layer = layer or self.layer
        if layer == LOGITS:
            logits = self(x)
            return Outputs(x, logits, logits)
        if layer is not None:
            with _capture_output(_module(self.module, layer)) as captured:
                logits = self(x)
            return Outputs(x, _features(captured, layer), logits)
        with linear_calls(self.module) as calls:
            logits = self(x)
        return Outputs(x, calls[-1].input.flatten(1) if calls else logits, logits)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, also of modules that return an object with ``.logits``."""
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
    """Wrap any module so that it returns features and logits: ``adapt(net).outputs(x)``.

    Features are the input of the last Linear layer that runs, or the output of the module named by ``layer``
    (``"logits"`` for the logits themselves). If no Linear layer runs, the logits are the features. Modules that
    already have this interface are returned unchanged.
    """
    _check_part(module, "the model")
    named = "outputs" in dict(module.named_children())  # a submodule may have that name
    inherited = getattr(type(module), "outputs", None) is Classifier.outputs  # does not call an overridden forward
    known = layer is None and not named and (as_written(module) or not inherited)
    return module if known and isinstance(module, Model) else Adapted(module, layer)


def _check_part(given: object, what: str) -> None:
    """Refuse anything but a module."""
    if not isinstance(given, nn.Module):
        raise ValueError(f"{what} is a {type(given).__name__} but must be a torch.nn.Module")


def as_own(network: nn.Module, normalize: nn.Module | None = None) -> nn.Module:
    """A user's network with its normalization, as it is attacked and trained."""
    known = normalize is None and (isinstance(network, Own) or cast(nn.Module, adapt(network)) is network)
    return network if known else Own(network, normalize)


def layer_features(model: Model, x: Tensor, layers: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
    """The features of several layers, and the logits, of one forward pass.

    A layer is the name of a module, ``"features"`` for the features of the model (see :func:`adapt`), or ``"logits"``.
    """
    root = model.module if isinstance(model, Adapted) else cast(nn.Module, model)
    with ExitStack() as stack:
        captured = {
            layer: stack.enter_context(_capture_output(_module(root, layer)))
            for layer in layers
            if layer not in (FEATURES, LOGITS)
        }
        out = model.outputs(x)
    whole = {FEATURES: out.features, LOGITS: out.logits}
    found = {layer: _features(captured[layer], layer) if layer in captured else whole[layer] for layer in layers}
    return found, out.logits


def _module(module: nn.Module, layer: str) -> nn.Module:
    known = dict(bare(module).named_modules())
    if layer not in known:
        raise ValueError(f"the model has no layer {layer!r}; it has {', '.join(name for name in known if name)}")
    found: nn.Module = known[layer]
    return found


def _features(captured: list[Tensor], layer: str) -> Tensor:
    if not captured:
        raise ValueError(f"layer {layer!r} did not run in the forward pass, so it has no features")
    if not isinstance(captured[-1], Tensor):
        raise ValueError(
            f"layer {layer!r} gave a {type(captured[-1]).__name__} but features are needed; name another layer"
        )
    return captured[-1].flatten(1)


@contextmanager
def forward_hooks(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call ``hook(module, args, kwargs, output)`` after every call of one of the modules within the context."""
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _capture_output(module: nn.Module) -> Iterator[list[Tensor]]:
    captured: list[Tensor] = []

    def hook(_module: nn.Module, _args: object, _kwargs: object, out: Tensor) -> None:
        captured.append(out.clone() if isinstance(out, Tensor) else out)  # the next layer may overwrite it in place

    with forward_hooks([module], hook):
        yield captured


class LinearCall(NamedTuple):
    """One call of a linear layer, with its input and output."""

    layer: nn.Linear
    input: Tensor
    output: Tensor


@contextmanager
def linear_calls(module: nn.Module) -> Iterator[list[LinearCall]]:
    """Record the calls of the linear layers of a module, in order."""
    calls: list[LinearCall] = []

    def hook(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        calls.append(LinearCall(cast(nn.Linear, layer), (*args, *kwargs.values())[0], output))

    with forward_hooks((m for m in module.modules() if isinstance(m, nn.Linear)), hook):
        yield calls
