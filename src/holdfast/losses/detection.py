"""Losses of attacks that know the detector of a model."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from holdfast.contracts import Outputs, Rows
from holdfast.losses.classification import logit_difference


@dataclass(frozen=True, eq=False)
class Evasion:
    """Misclassification first, then a high score of a detector, which Bryniarski et al. (2021) alternate too.

    ``score`` maps features (b, d) to the confidence of the detector, larger for natural samples. Where a sample is
    still classified correctly the loss is the logit difference, elsewhere the score. Use it with ``keep="worst"``,
    which returns the misclassified iterate with the largest score; no weight between the two aims has to be chosen.
    """

    score: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise ValueError(f"score is {self.score!r} but must be a function of features, such as detector.score")

    def __call__(self, out: Outputs, rows: Rows) -> Tensor:
        """The loss of each sample, (b,)."""
        difference = logit_difference(out, rows)
        return self.score(out.features).where(difference > 0, difference)
