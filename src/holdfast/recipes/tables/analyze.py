"""The table [analyze]: the look inside of networks, what their features do under attack."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from holdfast.geometry import Threat, eps_text
from holdfast.settings import check_types


@dataclass(frozen=True)
class Level:
    """PGD with so many steps at a threat: what features are moved by."""

    threat: Threat
    steps: int

    @property
    def name(self) -> str:
        """The attack in words."""
        return f"PGD-{self.steps} at {self.threat.norm.name} {eps_text(self.threat.eps)}"


@dataclass(frozen=True, kw_only=True)
class AnalyzeConfig:
    """What is analyzed: ``samples`` test samples against a ``gallery`` of training samples (None: all), evenly spaced.

    PGD attacks at each ``eps`` (none: that of the threat) with ``steps`` steps, one number for each eps or one for all.
    ``layer`` names the module whose output is the features (None: the input of the last linear layer); r, r', nearest
    neighbors and detection are also measured in further ``layers``. ``k`` are the numbers of neighbors. The detector's
    threshold rejects the share ``fpr`` of validation samples. Some samples are ``followed`` along the attack at the
    largest eps, on the map, and through ``restarts``; the loss around ``landscape`` of them is measured on a grid.
    """

    samples: int | None = 1000
    gallery: int | None = 10_000
    layer: str | None = None
    layers: tuple[str, ...] = ()
    eps: tuple[float, ...] = ()
    steps: tuple[int, ...] = (40,)
    k: tuple[int, ...] = (50,)
    fpr: float = 0.05
    followed: int = 200
    restarts: int = 5
    landscape: int = 20

    def __post_init__(self) -> None:
        check_types(self)
        counts = {"samples": self.samples, "gallery": self.gallery, "restarts": self.restarts}
        low = next((name for name, count in counts.items() if count is not None and count < 1), None)
        if low is not None:
            raise ValueError(f"{low} is {counts[low]} but must be at least 1")
        if not 0 <= self.landscape <= self.followed or not 2 <= self.followed <= 1000:
            raise ValueError(
                f"followed is {self.followed} and landscape {self.landscape} but 2 to 1000 samples can be followed, "
                "and the landscape is that of some of them"
            )
        if not all(0 < eps < inf for eps in self.eps) or len(set(self.eps)) < len(self.eps):
            raise ValueError(f"eps is {list(self.eps)} but different finite numbers above 0 are needed")
        if min(self.steps, default=0) < 1:
            raise ValueError(f"steps is {list(self.steps)} but an attack needs at least one step")
        if len(self.steps) not in (1, len(self.eps)):
            raise ValueError(
                f"steps is {list(self.steps)} for {len(self.eps)} eps; give one number for each eps, or one for all"
            )
        if min(self.k, default=0) < 1 or len(set(self.k)) < len(self.k):
            raise ValueError(f"k is {list(self.k)} but different numbers of neighbors from 1 are needed")
        if len({*self.layers, self.layer}) < len(self.layers) + 1:
            raise ValueError(f"layers is {list(self.layers)} and layer {self.layer!r} but different layers are needed")
        if not 0 < self.fpr < 1:
            raise ValueError(f"fpr is {self.fpr} but must be a share between 0 and 1")

    def levels(self, threat: Threat) -> Sequence[Level]:
        """The attacks, the largest eps last."""
        each = self.eps or (threat.eps,)
        if max(each) == inf:
            raise ValueError(f"the threat is {threat} but features are followed within a finite eps; give eps")
        steps = self.steps if len(self.steps) > 1 else self.steps * len(each)
        pairs = sorted(zip(each, steps, strict=True))
        return [Level(replace(threat, eps=eps), many) for eps, many in pairs]
