"""Attack on features."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks._ascent import Loop, micro_batches
from holdfast.attacks._attack import LoopAttack
from holdfast.attacks._checks import check, check_outputs, one_of
from holdfast.attacks._rules import Steepest, default_step
from holdfast.contracts import Cost, Keep, Loss, Model, Outputs, Rows, Start, Watch
from holdfast.crafting.view import frozen
from holdfast.geometry import Threat
from holdfast.losses.latent import Distance, PrototypeDifference, away_from_prototype, toward_prototype
from holdfast.models.classifier import adapt
from holdfast.rng import Rng

ReadOut = Callable[[Tensor], Tensor]
"""Maps features (b, d) to labels (b,) or to scores (b, classes)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Latent(LoopAttack):
    """PGD that moves the features of a sample instead of its logits (Sabour et al. 2016).

    It attacks classifiers that read features in another way than by the linear head, such as nearest prototypes or
    nearest neighbors. Where the features go is decided by what is given:

    - ``prototypes`` (classes, d), for example :func:`holdfast.losses.latent.class_means`: away from the prototype of
      the label and toward the nearest prototype of another class;
    - ``rows["prototype"]`` (b, d), given with the samples: toward that prototype;
    - neither: away from the features of the clean sample, which needs a start other than "clean".

    ``layer`` names the module whose output is the features; None takes the input of the last linear layer. A sample is
    misclassified by the model's own logits, or by ``readout`` of the features if that is given.
    """

    threat: Threat
    prototypes: Tensor | None = None
    distance: Distance = "euclidean"
    layer: str | None = None
    readout: ReadOut | None = None
    steps: int = 40
    step: float | None = None
    restarts: int = 1
    keep: Keep = "fooled"
    start: Start = "random"

    def __post_init__(self) -> None:
        one_of("distance", self.distance, get_args(Distance))
        super().__post_init__()

    @property
    def loop(self) -> Loop:
        """Steepest steps away from the clean features, or between the given prototypes."""
        away: Loss = partial(away_from_prototype, distance=self.distance)
        return self._loop(away if self.prototypes is None else PrototypeDifference(self.prototypes, self.distance))

    def _loop(self, loss: Loss) -> Loop:
        return Loop(
            threat=self.threat,
            loss=loss,
            rule=Steepest(default_step(self.step, self.threat, self.steps)),
            keep=self.keep,
            start=self.start,
            steps=self.steps,
            restarts=self.restarts,
        )

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        """Adversarial inputs for x."""
        rows, loop = Rows.of(y), self.loop
        check(x, rows, self.threat)
        if self.layer is not None or self.readout is not None:
            model = _Features(model, self.layer, self.readout)
        if self.prototypes is None and "prototype" in rows.given:
            loop = self._loop(partial(toward_prototype, distance=self.distance))
        elif self.prototypes is None:
            rows = self._with_clean(model, x, rows, rng, watch)
        return loop(model, x, rows, rng=rng, watch=watch)

    def _with_clean(self, model: nn.Module, x: Tensor, rows: Rows, rng: Rng, watch: Watch | None) -> Rows:
        """The rows with the clean features as the prototype to leave."""
        if self.start == "clean":
            raise ValueError(
                'start is "clean" but the distance to the clean features has no gradient there; give prototypes, '
                'rows with a "prototype", or start="random"'
            )
        features = [x.new_zeros(0)]
        with frozen(model, rng.fork("clean")) as view, torch.no_grad():
            features += [_clean(view, x[ids], rows.take(ids), watch) for ids in micro_batches(x)]
        known = [part for part in features if len(part)]
        prototype = torch.cat(known) if known else x.flatten(1)
        return Rows(rows.y, rows.index, {**rows.given, "prototype": prototype})


def _clean(view: Model, x: Tensor, rows: Rows, watch: Watch | None) -> Tensor:
    out = view.outputs(x)
    check_outputs(rows, out.logits)
    if watch is not None:
        watch(rows, x, torch.zeros_like(rows.y, dtype=x.dtype), Cost(forwards=len(x)))
    return out.features


class _Features(nn.Module):
    """A model whose features are those of ``layer`` and whose logits are what ``readout`` says of them."""

    def __init__(self, model: nn.Module, layer: str | None, readout: ReadOut | None) -> None:
        super().__init__()
        self.model, self.layer, self.readout = model, layer, readout

    def outputs(self, x: Tensor, layer: str | None = None) -> Outputs:
        """Features and logits of one forward pass."""
        out = adapt(self.model).outputs(x, layer or self.layer)
        return out if self.readout is None else Outputs(x, out.features, self._read(self.readout, out))

    def forward(self, x: Tensor) -> Tensor:
        """The logits, or the scores of the read-out."""
        return self.outputs(x).logits

    def _read(self, readout: ReadOut, out: Outputs) -> Tensor:
        with torch.no_grad():
            found = readout(out.features.detach())
        if found.ndim == 2 and len(found) == len(out.logits):
            return found
        if found.shape != out.logits.shape[:1] or found.dtype != torch.int64:
            raise ValueError(
                f"readout returned {tuple(found.shape)} of type {found.dtype} for {len(out.logits)} samples but labels "
                "(b,) of type int64 or scores (b, classes) are needed"
            )
        return functional.one_hot(found, out.logits.shape[1]).to(out.logits)
