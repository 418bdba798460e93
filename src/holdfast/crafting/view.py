"""What attacks see of a model: frozen, in eval mode, fast where that is sound, and left exactly as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from holdfast.contracts import Model, Outputs
from holdfast.crafting import folding
from holdfast.crafting.arithmetic import chosen
from holdfast.models.classifier import adapt
from holdfast.models.mixed import Mixed
from holdfast.rng import Rng

_unsound: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # why the last use gave up a model's folded form
_CHECKED = (
    2  # samples on which a folded model must agree with the model itself, each time it is used: few, as it is slow
)


@contextmanager
def frozen(model: nn.Module, rng: Rng) -> Iterator[Model]:
    """The model with open outputs, in eval mode and without parameter gradients, for the time of the context.

    Modes and gradient flags are put back also after an exception. Draws that a randomised model makes from torch's
    own generators come from ``rng``, and those generators are put back too.
    """
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = sorted({p.device.index or 0 for p, _ in wanted if p.device.type == "cuda"})
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        with torch.random.fork_rng(devices=devices):
            _seed(rng.fork("model").seed, [parameter.device for parameter, _ in wanted])
            yield adapt(model)
    finally:
        for module, training in modes:
            module.training = training
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)


def _seed(seed: int, devices: list[torch.device]) -> None:
    if all(device.type == "cpu" for device in devices):
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)  # asks every kind of device there is, which takes fifty times as long


@contextmanager
def crafting(model: nn.Module, rng: Rng, passes: int = 10) -> Iterator[Model]:
    """The frozen model in its fastest sound form, for crafting only: the judge asks the model itself.

    ``passes`` is about how many there will be: what takes time to prepare is prepared only for many.
    """
    model = unwrapped(model)
    with frozen(model, rng) as view:
        fast = _fastest(model)
        if isinstance(fast, str) or not fast.pays(passes):
            yield view
        else:
            fast.prepare(passes)
            yield _Fast(model, view, fast)


def _fastest(model: nn.Module) -> folding.Folded | str:
    """Lower precision where it is chosen and possible, else folded, else the reason why not."""
    kinds = {(p.dtype, p.device) for p in model.parameters()}
    if any(torch.is_autocast_enabled(device.type) for _, device in kinds):
        return "autocast is on"
    if len(kinds) == 1:
        dtype, device = kinds.pop()
        if dtype == torch.float32 and chosen(device) == torch.bfloat16:
            lowered = folding.folded(model, torch.bfloat16)
            if not isinstance(lowered, str):
                return lowered
    return folding.folded(model)


def described(model: nn.Module) -> dict[str, bool | str]:
    """How attacks see this model, for the records: folded or not, and why not, and the arithmetic."""
    model = unwrapped(model)
    fast = _unsound.get(model) or _fastest(model)
    own = next((str(p.dtype) for p in model.parameters()), "float32").removeprefix("torch.")
    if isinstance(fast, str):
        return {"folded": False, "reason": fast, "arithmetic": own}
    return {"folded": True, "arithmetic": own if fast.exact else "bfloat16"}


def confirmed(view: Model, x: Tensor, y: Tensor, fooled: Tensor) -> Tensor:
    """(b,) who is fooled, asked again with full precision where the view computes with less."""
    if not isinstance(view, _Fast) or view.exact or not fooled.any():
        return fooled
    sure = fooled.clone()
    sure[fooled] = view.precisely(x[fooled]).argmax(1) != y[fooled]
    return sure


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of training, which crafting needs none of."""
    wrappers = (nn.parallel.DistributedDataParallel, AveragedModel, Mixed)
    engine = type(model).__module__.partition(".")[0] in ("lightning", "lightning_fabric")
    inside = getattr(model, "module", None)
    wraps = isinstance(inside, nn.Module) and (engine or isinstance(model, wrappers))
    return unwrapped(cast(nn.Module, inside)) if wraps else model


class _Fast:
    """A folded model that is held against the model itself on the first samples it sees."""

    def __init__(self, model: nn.Module, view: Model, fast: folding.Folded) -> None:
        self._model, self._view = model, view
        self._fast: folding.Folded | None = fast
        self._checked = False

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features and logits of one pass."""
        if self._fast is None or layer is not None:
            return self._view.outputs(x, layer)
        if self._checked or not len(x):
            return Outputs(x, *self._fast(x))
        out = self._first(x, self._fast)
        if isinstance(out, Outputs):
            _unsound.pop(self._model, None)
            return out
        # for this use alone: what is decided anew each time does not depend on whether the run was ever stopped
        _unsound[self._model] = out
        self._fast = None
        return self._view.outputs(x)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.outputs(x).logits

    @property
    def exact(self) -> bool:
        """Whether outputs have the precision of the model itself."""
        return self._fast is None or self._fast.exact

    @torch.no_grad()
    def precisely(self, x: Tensor) -> Tensor:
        """Logits as the model itself gives them."""
        return self._view.outputs(x).logits

    def _first(self, x: Tensor, fast: folding.Folded) -> Outputs | str:
        """The outputs of the first pass, or what is wrong with them."""
        self._checked = True
        few = x[:_CHECKED]
        try:
            out = Outputs(x, *fast(x))
            alike = fast.faithful(lambda x: self._view.outputs(x).logits, few)
        except Exception as error:  # a user's layers on what they were not made for: anything can be raised
            return f"folded, it fails ({type(error).__name__})"
        with torch.no_grad():
            pairs = zip(out[1:], self._view.outputs(few)[1:], strict=True)
            same = all(folding.agree(found[:_CHECKED], own, self.exact) for found, own in pairs)
        if not alike:
            return "traced, it has other gradients"
        return out if same else "folded, it gives other outputs"
