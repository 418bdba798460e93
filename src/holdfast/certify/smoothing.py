"""Randomized smoothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln
from scipy.stats import binomtest, norm
from torch import Tensor, nn
from torch.nn import functional

from holdfast.contracts import Certificate, Model, Norm
from holdfast.crafting import using
from holdfast.crafting.arithmetic import arithmetic
from holdfast.crafting.view import frozen
from holdfast.geometry import L2
from holdfast.models.own import raised
from holdfast.rng import Rng
from holdfast.settings import check_tensors, check_types
from holdfast.statistics import clopper_pearson

Counts = NDArray[np.int64]
_DRAWS = 100  # noisy copies of an image per draw; fixed, so that results do not depend on the batch
_IMAGES = 10  # images per forward pass


@dataclass(frozen=True, eq=False, kw_only=True)
class Smoothing:
    """L2 radii of the smoothed network: the class that ``model`` returns most often under Gaussian noise.

    CERTIFY of Cohen et al. (2019): ``selection`` noisy copies of an input choose a class A, then fresh ones, ``n`` at
    most, bound its probability p from below. The radius is sigma·Phi^-1(p); an input whose bound is at most 1/2 is an
    abstention. With probability 1 - ``alpha`` for each input, the radius is valid. It is the radius of the smoothed
    network, not of ``model``: an attack on ``model`` says nothing about it. Noisy inputs are not clipped. The theorem
    is about real numbers; the rounding errors of noise and network are not covered, unlike in CROWN.

    Without ``radii`` the bound is that of Clopper and Pearson (1934) after n copies. With ``radii`` the answer is the
    largest of them that is proved, and copies are drawn only until that is decided, which usually takes far fewer:

    **The sequential test.** Let A of N votes be for the class, P_q = q^A (1-q)^(N-A) their likelihood, and Q =
    B(A + 1/2, N - A + 1/2) / B(1/2, 1/2) its mean over the Beta(1/2, 1/2) distribution of q (Krichevsky and Trofimov
    1981). A radius r is proved, with q = Phi(r/sigma), as soon as A >= q N and Q / P_q >= 1/alpha at some N. *Claim:*
    the probability that any radius beyond the true sigma·Phi^-1(p) is ever proved is at most alpha. *Proof:* Under the
    true p, Q / P_p is a nonnegative martingale of mean 1, because Q and P_p are both probabilities of a sequence of
    votes and Q's are consistent in N. By Ville's inequality it reaches 1/alpha with probability at most alpha. If a
    radius with q >= p is proved at N, then p <= q <= A/N, and P_q, which increases in q up to A/N, is at least P_p.
    So Q / P_p >= Q / P_q >= 1/alpha: the rare event. It is the same event for all radii and all N, hence several radii
    and any rule of when to stop need no correction.
    """

    model: nn.Module
    sigma: float = 0.25
    selection: int = 100
    n: int = 10_000
    alpha: float = 0.001
    radii: tuple[float, ...] = ()
    norm: Norm = field(default=L2(), init=False)
    certifies = "the smoothed network"
    closed = True

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 < self.sigma < inf:
            raise ValueError(f"sigma is {self.sigma} but noise has a standard deviation above 0, e.g. 0.25")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha} but it is a probability of failure between 0 and 1, e.g. 0.001")
        if self.selection < 1:
            raise ValueError(f"selection is {self.selection} but at least 1 noisy copy must choose the class")
        if not all(0 <= radius < inf for radius in self.radii):
            raise ValueError(f"radii is {list(self.radii)} but radii of zero or more can be certified")
        if self.n < 1 or clopper_pearson(0, self.n, 1 - self.alpha) >= 0.5:
            raise ValueError(f"n is {self.n}, with which nothing can be certified at alpha {self.alpha:g}; use more")
        for radius in self.radii:
            if not self._proved(np.array(self.n), np.array(self.n), radius):
                raise ValueError(f"n is {self.n}, with which radius {radius:g} can never be certified; use a larger n")

    @torch.no_grad()
    def __call__(self, x: Tensor, *, rng: Rng) -> Certificate:
        """Return label and radius of each input; -1 and 0 where the smoothed network abstains."""
        return self.examine(x, rng=rng)[0]

    @torch.no_grad()
    def examine(self, x: Tensor, *, rng: Rng) -> tuple[Certificate, Tensor]:
        """The certificates, and how many noisy copies of each input were classified."""
        _check(x, rng)
        with _exact(self.model, rng) as view:
            label = self._votes(view, x, self.selection, rng.fork("selection")).argmax(1)
            radius, drawn = self._bound(view, x, label, rng.fork("bound"))
        found = torch.where(radius >= 0, label, -1), radius.clamp_min(0), torch.full_like(radius, inf)
        return Certificate(*found), drawn + self.selection

    @torch.no_grad()
    def predict(self, x: Tensor, *, rng: Rng) -> Tensor:
        """PREDICT of Cohen et al. (2019): labels after n noisy copies, -1 where the two most frequent are too close.

        A label that is returned is that of the smoothed network with probability 1 - alpha.
        """
        _check(x, rng)
        with _exact(self.model, rng) as view:
            top = self._votes(view, x, self.n, rng.fork("predict")).topk(2, dim=1)
        label, pairs = top.indices[:, 0], top.values.tolist()
        sure = [a + b > 0 and binomtest(a, a + b).pvalue <= self.alpha for a, b in pairs]
        return torch.where(torch.tensor(sure, device=x.device, dtype=torch.bool), label, -1)

    def _votes(self, view: Model, x: Tensor, count: int, rng: Rng) -> Tensor:
        """How often each class is returned, (b, classes), in ``count`` noisy copies of each input."""
        rng = _keyed(rng, len(x))
        return torch.cat(
            [self._vote(view, x[ids], count, _take(rng, ids)) for ids in torch.split(torch.arange(len(x)), _IMAGES)]
            or [self._draw(view, x, 1, rng)]
        )

    def _vote(self, view: Model, x: Tensor, count: int, rng: Rng) -> Tensor:
        draws = [min(_DRAWS, count - start) for start in range(0, count, _DRAWS)]
        return torch.stack([self._draw(view, x, size, rng.fork(i)) for i, size in enumerate(draws)]).sum(0)

    def _draw(self, view: Model, x: Tensor, count: int, rng: Rng) -> Tensor:
        """The votes of one draw; an output that is not finite is no vote."""
        noisy = rng.normal(x[:, None].expand(-1, count, *x.shape[1:])).mul_(self.sigma).add_(x[:, None])
        logits = view.outputs(noisy.flatten(0, 1)).logits
        votes = functional.one_hot(logits.argmax(1), logits.shape[1]) * logits.isfinite().all(1)[:, None]
        return votes.reshape(len(x), count, logits.shape[1]).sum(1)

    def _bound(self, view: Model, x: Tensor, label: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        """The radius of each label, -1 where there is none, and the number of noisy copies it took."""
        if self.radii:
            return self._sequential(view, x, label, rng)
        votes = self._votes(view, x, self.n, rng).gather(1, label[:, None]).squeeze(1)
        other = [clopper_pearson(self.n - count, self.n, 1 - self.alpha) for count in votes.tolist()]
        radius = [self.sigma * norm.isf(p) if p < 0.5 else -1.0 for p in other]
        return torch.tensor(radius, dtype=torch.float64, device=x.device), torch.full_like(label, self.n)

    def _sequential(self, view: Model, x: Tensor, label: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        rng, radii = _keyed(rng, len(x)), sorted(self.radii)
        votes, done, drawn = (np.zeros(len(x), dtype=np.int64) for _ in range(3))  # done: how many radii are proved
        open_ = np.arange(len(x))
        for i, start in enumerate(range(0, self.n, _DRAWS)):
            size = min(_DRAWS, self.n - start)
            for part in torch.split(torch.from_numpy(open_), _IMAGES):
                counts = self._draw(view, x[part], size, _take(rng, part).fork(i))
                votes[part.numpy()] += counts.gather(1, label[part][:, None]).squeeze(1).cpu().numpy()
            drawn[open_] += size
            left = self.n - start - size
            for k, radius in enumerate(radii):
                done[open_] += (done[open_] == k) & self._proved(votes[open_], drawn[open_], radius)
            open_ = open_[done[open_] < len(radii)]
            # a radius that no further votes could prove is not worth drawing for
            next_ = np.array(radii)[done[open_]]
            open_ = open_[self._proved(votes[open_] + left, self.n, next_)]
            if not len(open_):
                break
        found = np.array([-1.0, *radii])[done]
        return torch.from_numpy(found).to(x.device), torch.from_numpy(drawn).to(x.device)

    def _proved(self, votes: Counts, count: Counts | int, radius: Any) -> NDArray[np.bool_]:
        """Whether this many votes of ``count`` prove a radius."""
        z = radius / self.sigma
        mean = betaln(votes + 0.5, count - votes + 0.5) - betaln(0.5, 0.5)
        likelihood = votes * norm.logcdf(z) + (count - votes) * norm.logsf(z)
        return np.asarray((votes >= norm.cdf(z) * count) & (mean - likelihood >= -log(self.alpha)))


@contextmanager
def _exact(model: nn.Module, rng: Rng) -> Iterator[Model]:
    """The model itself in eval mode and its own arithmetic, also where attacks compute faster and less exactly."""
    with arithmetic("float32"), using("module"), frozen(model, rng.fork("network")) as view:
        try:
            yield view
        except RuntimeError as error:
            raise ValueError(raised("the network", error)) from error


def _keyed(rng: Rng, n: int) -> Rng:
    return rng if rng.rows is not None else rng.at(torch.arange(n))


def _take(rng: Rng, ids: Tensor) -> Rng:
    assert rng.rows is not None
    return Rng(rng.seed, rng.rows[ids])


def _check(x: Tensor, rng: Rng) -> None:
    check_tensors(x=x)
    if not isinstance(rng, Rng):
        raise ValueError(f"rng is {rng!r} but must be an Rng, which keys random numbers by sample; write rng=Rng(0)")
    if not x.is_floating_point() or not x.isfinite().all():
        raise ValueError(f"x is {x.dtype} or holds NaN or infinite values; give finite numbers of floating point")
