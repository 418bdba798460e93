"""The result of training from Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.progress import duration
from holdfast.statistics import Share


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """What :func:`holdfast.fit` returns: the trained ``model``, in eval mode, and the record of its training.

    ``history`` is the training log, ``facts`` what was done, at what cost and by which code. ``best`` are the accuracy
    without and under ``attack`` on the validation samples that selected the epoch ``epoch``. ``out`` is the folder of
    weights, if one was given.
    """

    model: nn.Module
    method: str
    attack: str
    clean: Share
    robust: Share
    epoch: int
    history: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any]
    out: Path | None

    def __str__(self) -> str:
        epochs = self.facts["epochs"]
        lines = [
            f"{self.method}: weights of epoch {self.epoch} of {epochs}, {duration(self.facts['seconds'])}",
            f"validation, no attack  {self.clean}",
            f"validation, {self.attack}  {self.robust}",
            "These samples chose the epoch; holdfast.evaluate measures accuracy on others.",
        ]
        return "\n".join([*lines, *([] if self.out is None else [f"weights: {self.out / 'best.safetensors'}"])])

    __repr__ = __str__  # in an interactive session
