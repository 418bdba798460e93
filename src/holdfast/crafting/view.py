"""The view of a model that attacks use: frozen, in eval mode, and fast where that is sound."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from holdfast.contracts import Model, Outputs
from holdfast.crafting import folding
from holdfast.crafting.arithmetic import chosen, within
from holdfast.crafting.tracing import hooked, input_gradient
from holdfast.models.classifier import Adapted, adapt
from holdfast.models.mixed import Mixed
from holdfast.models.own import Own, raised
from holdfast.rng import Rng

Mode = Literal["auto", "module"]

_CHECKED = 4  # samples on which the fast form is compared with the model; few, because the model itself is slow
_EVERY = 64  # forward passes from one comparison to the next within a call
_SELDOM = 8  # one of so many calls is chosen for a thorough comparison
_LARGE = 4000  # samples times passes of a call, beside which a thorough comparison costs little
_WRAPPERS = (nn.parallel.DistributedDataParallel, AveragedModel, Mixed)

_mode: ContextVar[Mode] = ContextVar("crafting", default="auto")
_unsound: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # why the last call gave up a model's fast form


def using(mode: Mode) -> AbstractContextManager[None]:
    """Make attacks call the fastest sound form of a model (``auto``) or the model itself (``module``) in the context.

    With ``module`` nothing is traced, folded or computed in lower precision; the model is only frozen.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"crafting is {mode!r} but it must be one of {', '.join(get_args(Mode))}")
    return within(_mode, mode)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set every module to eval mode within the context; the mode of each is restored."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_module(model: object) -> None:
    """Refuse a callable, which only black-box attacks take."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"the model is a {type(model).__name__} but gradients need a torch.nn.Module; attacks that take any "
            "callable are square, rays and hopskipjump"
        )


@contextmanager
def frozen(model: nn.Module, rng: Rng) -> Iterator[Model]:
    """The model with its features accessible, in eval mode and without parameter gradients, within the context.

    Modes and ``requires_grad`` flags are restored also after an exception. Numbers that a randomized model draws from
    torch's global generators come from ``rng``, and the state of those generators is restored too.
    """
    check_module(model)
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = sorted({p.device.index or 0 for p, _ in wanted if p.device.type == "cuda"})
    try:
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        with eval_mode(model), torch.random.fork_rng(devices=devices):
            # torch.manual_seed asks every kind of device there is, which takes fifty times as long
            on_cpu = all(parameter.device.type == "cpu" for parameter, _ in wanted)
            (torch.default_generator.manual_seed if on_cpu else torch.manual_seed)(rng.fork("model").seed)
            yield adapt(model)
    finally:
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)


def check_accepts(model: object, x: Tensor) -> None:
    """Say in one sentence what a network itself raises on inputs, if it does; an :class:`Own` does so by itself."""
    if not isinstance(model, nn.Module) or isinstance(model, Own):
        return
    try:
        with torch.no_grad(), frozen(model, Rng(0)) as view:
            view(x[:2])
    except RuntimeError as error:
        raise RuntimeError(f"{raised('the model', error)} (given inputs of shape {tuple(x.shape[1:])})") from error


@contextmanager
def crafting(model: nn.Module, rng: Rng, passes: int = 10) -> Iterator[Model]:
    """The frozen model in its fastest sound form, for crafting only: the judge calls the model itself.

    ``passes`` is the approximate number of forward and backward passes to come: some preparations pay only for many.
    """
    check_module(model)
    model = unwrapped(model)
    training = model.training
    with frozen(model, rng) as view:
        fast = _fastest(model)
        if isinstance(fast, str) or not fast.pays(passes):
            yield view
        else:
            fast.prepare(passes)
            chosen = rng.fork("comparison").seed % _SELDOM == 0  # not by counting calls: a resumed run repeats it
            yield _Fast(model, view, fast, chosen, 0 if training else passes)


def _fastest(model: nn.Module) -> folding.Folded | str:
    """The form in lower precision where that is chosen and possible, else the folded form, else why there is none."""
    if _mode.get() == "module":
        return "the module itself was asked for"
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
    """How attacks call this model, for the records: folded or not, the reason if not, and the arithmetic."""
    model = unwrapped(model)
    fast = (_mode.get() == "auto" and _unsound.get(model)) or _fastest(model)
    dtype = next((str(p.dtype) for p in model.parameters()), "float32").removeprefix("torch.")
    if isinstance(fast, str):
        return {"folded": False, "reason": fast, "arithmetic": dtype}
    return {"folded": True, "arithmetic": dtype if fast.exact else "bfloat16"}


def confirmed(view: Model, x: Tensor, y: Tensor, fooled: Tensor, targeted: bool = False) -> Tensor:
    """(b,) whether each sample is fooled, decided again in full precision where the view computes with less.

    ``y`` holds the labels, or the classes that a ``targeted`` attack wants.
    """
    if not isinstance(view, _Fast) or view.exact or not fooled.any():
        return fooled
    sure = fooled.clone()
    sure[fooled] = (view.precisely(x[fooled]).argmax(1) == y[fooled]) == targeted
    return sure


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of training, which add nothing to an eval pass.

    A subclass of a wrapper, or one with hooks or a forward pass of its own, may add something and stays.
    """
    kind = type(model)
    fabric = kind.__module__.startswith(("lightning.", "lightning_fabric.")) and kind.__name__ == "_FabricModule"
    adapted = isinstance(model, Adapted) and kind is Adapted and model.layer is None
    only_wraps = (kind in _WRAPPERS or fabric or adapted) and not hooked(model) and "forward" not in vars(model)
    inside = getattr(model, "module", None) if only_wraps else None
    return unwrapped(inside) if isinstance(inside, nn.Module) else model


class _Fast:
    """The fast form of a model, compared with the model itself at the first pass and again from time to time.

    A thorough comparison includes gradients. It is made when the form is new, in calls that are ``chosen``, and after
    every 64 passes. In lower precision on a model in eval mode it is also made when the weights are new and in every
    large call; ``passes`` is their expected number, 0 on a model in train mode. While a model is trained, weights are
    always new and calls are short and many, and a form in full precision that agreed before differs only by its
    weights.
    """

    def __init__(self, model: nn.Module, view: Model, fast: folding.Folded, chosen: bool, passes: int) -> None:
        self._model, self._view, self._chosen, self._expected = model, view, chosen, passes
        self._fast: folding.Folded | None = fast
        self._passes = 0

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        if self._fast is None or layer is not None:
            return self._view.outputs(x, layer)
        due, thorough = len(x) > 0 and self._passes % _EVERY == 0, self._thorough(x, self._fast)
        self._passes += len(x) > 0
        # what is exact and agreed rounds little, so that new weights change nothing
        if not due or (self._fast.exact and not thorough):
            return Outputs(x, *self._fast(x))
        out = self._compared(x, self._fast, thorough)
        self._fast.agreed = isinstance(out, Outputs) and (thorough or self._fast.agreed)
        if isinstance(out, Outputs):
            _unsound.pop(self._model, None)
            return out
        # for this call alone: the next one compares again
        _unsound[self._model] = out
        self._fast = None
        return self._view.outputs(x)

    def _thorough(self, x: Tensor, fast: folding.Folded) -> bool:
        """True if a comparison at this pass includes gradients."""
        if self._chosen or self._passes > 0:  # a call of so many passes can afford it
            return True
        if fast.exact:
            return not fast.agreed
        return self._expected > 0 and not (fast.agreed and self._expected * len(x) < _LARGE)

    def __call__(self, x: Tensor) -> Tensor:
        return self.outputs(x).logits

    @property
    def exact(self) -> bool:
        """True if outputs have the precision of the model itself."""
        return self._fast is None or self._fast.exact

    @torch.no_grad()
    def precisely(self, x: Tensor) -> Tensor:
        """Logits of the model itself."""
        return self._view.outputs(x).logits

    def _compared(self, x: Tensor, fast: folding.Folded, thorough: bool) -> Outputs | str:
        """The outputs of the fast form, or in what it differs from the model."""
        few, seen = x[:_CHECKED], []

        def logits(x: Tensor) -> Tensor:
            seen.append(self._view.outputs(x))
            return seen[-1].logits

        try:
            out = Outputs(x, *fast(x))
            faithful = fast.faithful(logits, few)
            along = True
            if thorough:
                along = folding.same_direction(input_gradient(lambda x: fast(x)[1], few), input_gradient(logits, few))
            else:
                with torch.no_grad():
                    logits(few)
        except Exception as error:  # a user's layers on inputs they were not written for can raise anything
            return f"folded, it fails ({type(error).__name__})"
        pairs = zip(out[1:], seen[-1][1:], strict=True)
        same = all(folding.agree(found.detach()[:_CHECKED], own.detach(), fast.exact) for found, own in pairs)
        if not faithful:
            return "traced, it has other gradients"
        if not same:
            return "folded, it gives other outputs"
        return out if along else f"in {'full' if fast.exact else 'lower'} precision, its gradients point elsewhere"
