"""Step rules: how the gradient loop moves from one iterate to the next.

The state of a rule is explicit, with one row per sample, so that samples can leave and enter a micro-batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol

import torch
from torch import Tensor

from holdfast.geometry import Threat

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Point:
    """The iterates of a micro-batch with their input gradients and losses; ``t`` counts the steps of each sample."""

    x: Tensor
    x_adv: Tensor
    grad: Tensor
    loss: Tensor
    t: Tensor
    threat: Threat
    corners: tuple[Tensor, ...] = ()

    def project(self, x_adv: Tensor) -> Tensor:
        """Project onto the threat; where that is clipping between known corners, x_adv is overwritten."""
        return project(self.threat, x_adv, self.x, self.corners)

    def column(self, values: Tensor) -> Tensor:
        """Reshape (b,) values so that they broadcast over the inputs."""
        return values.reshape(-1, *[1] * (self.x_adv.ndim - 1))


class Rule(Protocol):
    """How an attack takes a step."""

    def begin(self, x_adv: Tensor) -> State:
        """The initial state, for samples that start at x_adv."""

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate, as a new tensor projected onto the threat, and the new state."""


@dataclass(frozen=True)
class Steepest:
    """A step of fixed length in the steepest direction of the threat's norm."""

    step: float

    def begin(self, x_adv: Tensor) -> State:
        """No state."""
        return ()

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        return point.project(torch.add(point.x_adv, point.threat.norm.steepest(point.grad), alpha=self.step)), state


@dataclass(frozen=True)
class Annealed:
    """A step in the steepest direction whose length, ``size(t)``, depends on the number t of earlier steps."""

    size: Callable[[Tensor], Tensor]

    def begin(self, x_adv: Tensor) -> State:
        """No state."""
        return ()

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        size = point.column(self.size(point.t.to(at_least_float32(point.x_adv))).to(point.x_adv))
        return point.project(point.x_adv + size * point.threat.norm.steepest(point.grad)), state


@dataclass(frozen=True)
class Momentum:
    """Steepest steps on g <- decay·g + grad / mean|grad|, per sample (Dong et al. 2018, MI-FGSM)."""

    step: float
    decay: float

    def begin(self, x_adv: Tensor) -> State:
        """Zero momentum."""
        return (torch.zeros_like(x_adv),)

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        scale = point.grad.abs().flatten(1).mean(1).reshape(-1, *[1] * (point.grad.ndim - 1))
        g = self.decay * state[0] + torch.where(scale > 0, point.grad / scale, 0.0)
        return point.project(torch.add(point.x_adv, point.threat.norm.steepest(g), alpha=self.step)), (g,)


@dataclass(frozen=True)
class MovingAverage:
    """Steepest steps on g <- decay·g + (1 - decay)·grad, from the first gradient on, as in the code of TLA."""

    step: float
    decay: float

    def begin(self, x_adv: Tensor) -> State:
        """Zeros, which the first gradient replaces."""
        return (torch.zeros_like(x_adv),)

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        first = (point.t == 0).reshape(-1, *[1] * (point.grad.ndim - 1))
        g = torch.where(first, point.grad, self.decay * state[0] + (1 - self.decay) * point.grad)
        return point.project(torch.add(point.x_adv, point.threat.norm.steepest(g), alpha=self.step)), (g,)


@dataclass(frozen=True)
class Adam:
    """Steps of Adam (Kingma and Ba 2015) with learning rate ``step``; the code of LLR uses 0.1."""

    step: float
    first: float = 0.9
    second: float = 0.999
    least: float = 1e-9  # as in the code of LLR; the gradients of a well-fitted sample are tiny

    def begin(self, x_adv: Tensor) -> State:
        """Zero first and second moments."""
        return torch.zeros_like(x_adv), torch.zeros_like(x_adv)

    def move(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate and the new state."""
        x_adv, state = self.unprojected(point, state)
        return point.project(x_adv), state

    def unprojected(self, point: Point, state: State) -> tuple[Tensor, State]:
        """The next iterate before it is projected onto the threat, for attacks on a change of variables."""
        mean = self.first * state[0] + (1 - self.first) * point.grad
        square = self.second * state[1] + (1 - self.second) * point.grad.square()
        t = (point.t + 1).to(mean.dtype).reshape(-1, *[1] * (mean.ndim - 1))
        size = (square / (1 - self.second**t)).sqrt() + self.least
        return point.x_adv + self.step * mean / (1 - self.first**t) / size, (mean, square)


def project(threat: Threat, x_adv: Tensor, x: Tensor, corners: tuple[Tensor, ...]) -> Tensor:
    """Project onto the threat around x; if that is clipping between the known corners, x_adv is overwritten."""
    return x_adv.clamp_(*corners) if corners else threat.project(x_adv, x)


def at_least_float32(x: Tensor) -> torch.dtype:
    """The type of x, or float32 if x is in half precision: losses and step sizes need the digits."""
    return torch.promote_types(x.dtype, torch.float32)


def scaled(step: float | None, threat: Threat, eps: float) -> float | None:
    """The step size in proportion to another eps; unchanged where the proportion is undefined (eps 0 or infinite)."""
    return step if step is None or threat.eps in (0, inf) or eps == inf else step * eps / threat.eps


def default_step(step: float | None, threat: Threat, steps: int) -> float:
    """The given step size, or 2.5·eps/steps, which crosses the ball from any start (Madry et al. 2018)."""
    chosen = 2.5 * threat.eps / max(1, steps) if step is None else step
    if not 0 <= chosen < inf:
        raise ValueError(
            f"the step is {chosen} but a step must be finite and not negative; "
            "where eps is infinite give a step or a finite eps"
        )
    return chosen
