"""Attacks from elsewhere: any function (model, x, y) -> x_adv, and adversarial examples that are already there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.attacks._attack import StandaloneAttack
from holdfast.attacks._checks import check
from holdfast.contracts import Cost, Predictor, Rows, Watch
from holdfast.crafting.view import frozen
from holdfast.geometry import Threat
from holdfast.models.classifier import forward_hooks
from holdfast.models.own import Own, raised
from holdfast.rng import Rng

Craft = Callable[[Any, Tensor, Tensor], Any]
"""A function (model, x, y) that returns adversarial inputs for x as a tensor or a numpy array."""

_GIVEN = 250  # samples that a function is given at once; it may hold a graph of all of them in memory


@dataclass(frozen=True, kw_only=True)
class Foreign(StandaloneAttack):
    """An attack that is a function (model, x, y) -> x_adv, for example one of foolbox, torchattacks or ART.

    The function is given the model that the user gave, in eval mode and without parameter gradients, and torch's
    random numbers are seeded; mode, flags and the state of the generators are restored.
    """

    threat: Threat
    function: Craft
    black_box = True  # how the function uses the model is not known

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """What the function returns, on the device and in the type of x."""
        rows = Rows.of(y)
        check(x, rows, self.threat)
        given = model.network if isinstance(model, Own) else model
        found, start = [x[:0]], 0
        with _prepared(model, rng), torch.enable_grad():
            for part in torch.split(x, _GIVEN) if len(x) else ():
                which = slice(start, start + len(part))
                with _counted(given) as passes:
                    x_adv = _crafted(self.function, given, part.clone(), rows.y[which])
                found.append(_tensor(self.function, x_adv, part))
                if watch is not None:
                    watch(Rows(rows.y[which], rows.index[which]), found[-1], part.new_zeros(len(part)), Cost(*passes))
                start += len(part)
        return torch.cat(found)


@dataclass(frozen=True, kw_only=True)
class Examples(StandaloneAttack):
    """Adversarial examples that are already there: ``x_adv`` holds one for each sample in ``index``, ascending."""

    threat: Threat
    x_adv: Tensor
    index: Tensor
    black_box = True

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """The examples of these samples."""
        return self.x_adv[torch.searchsorted(self.index, Rows.of(y).index.cpu())].to(x)


@contextmanager
def _prepared(model: Predictor, rng: Rng) -> Iterator[None]:
    if not isinstance(model, nn.Module):
        yield
        return
    with frozen(model, rng):
        yield


@contextmanager
def _counted(model: Predictor) -> Iterator[list[int]]:
    """The forward and backward passes of a module within the context, in samples."""
    passes = [0, 0]

    def backward(gradient: Tensor) -> None:
        passes[1] += len(gradient)

    def forward(_module: nn.Module, _args: object, _kwargs: object, out: Any) -> None:
        logits = getattr(out, "logits", out)
        passes[0] += len(logits)
        if isinstance(logits, Tensor) and logits.requires_grad:
            logits.register_hook(backward)  # type: ignore[no-untyped-call]

    with forward_hooks([model] if isinstance(model, nn.Module) else [], forward):
        yield passes


def _crafted(function: Craft, model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """What a function returns; its errors are reported as such."""
    try:
        return function(model, x, y)
    except TypeError as error:
        reason = raised(f"the attack {name_of(function)}", error)
        raise ValueError(
            f"{reason}; it is called as attack(model, x, y): write lambda model, x, y: attack(x, y) for one of "
            "torchattacks, attack(foolbox.PyTorchModel(model, (0, 1)), x, y, epsilons=eps)[1] for one of foolbox"
        ) from error
    except Exception as error:
        raise RuntimeError(raised(f"the attack {name_of(function)}", error)) from error


def _tensor(function: Craft, x_adv: Any, x: Tensor) -> Tensor:
    if isinstance(x_adv, np.ndarray) and x_adv.dtype.kind == "f":
        x_adv = torch.from_numpy(x_adv)
    if not isinstance(x_adv, Tensor) or x_adv.shape != x.shape or not x_adv.is_floating_point():
        shape = f" of shape {tuple(x_adv.shape)}" if isinstance(x_adv, Tensor | np.ndarray) else ""
        raise ValueError(
            f"the attack {name_of(function)} returned a {type(x_adv).__name__}{shape} for inputs of shape "
            f"{tuple(x.shape)}; return the adversarial inputs alone, as floating point of the same shape (of what "
            "foolbox returns, the second)"
        )
    return x_adv.detach().to(x)


def name_of(function: Craft, unnamed: str = "attack") -> str:
    """The name of a function, or of the class of a callable object."""
    name = getattr(function, "__name__", type(function).__name__)
    return unnamed if name == "<lambda>" else name
