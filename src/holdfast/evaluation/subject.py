"""A subject: any classifier that is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.contracts import Predictor
from holdfast.evaluation.judge import predict
from holdfast.records.parts import Parts
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A classifier under test: a model that a recipe trained, a user's own module, a metric with its neighbors.

    ``name`` and ``seed`` say which row of a table it belongs to and ``group`` which classifier of that row it is, such
    as "K = 11". ``digest`` identifies the classifier: results of another one are not reused. Records go to ``folder``
    and ``facts`` into them; finished parts go to ``parts``, by default inside ``folder``, which equal classifiers may
    share. ``predict`` takes inputs of type ``dtype``. ``model`` is None where there is no module: attacks that need
    gradients are then refused, and black-box attacks query ``scores``, or ``predict`` where it is None.
    """

    name: str
    seed: int
    group: str = ""
    digest: str
    folder: Path
    facts: Mapping[str, Any]
    predict: Callable[[Tensor, Rng], Tensor]
    dtype: torch.dtype = torch.float32
    model: nn.Module | None = None
    scores: Predictor | None = None
    parts: Path | None = None

    @property
    def cache(self) -> Parts:
        """The finished parts of this subject."""
        return Parts(self.folder / "parts" if self.parts is None else self.parts)


def network(model: nn.Module, **about: Any) -> Subject:
    """A network as a subject; ``about`` holds the other fields of :class:`Subject`."""
    return Subject(model=model, predict=partial(predict, model), **about)
