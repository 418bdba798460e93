"""HopSkipJump, a decision-based attack."""

from dataclasses import dataclass
from math import ceil, log2, sqrt

import torch
from torch import Tensor

from holdfast.attacks._ascent import micro_batches
from holdfast.attacks._queries import Oracle, QueryAttack, column, reach
from holdfast.contracts import Rows
from holdfast.geometry import Threat
from holdfast.rng import Rng

_TRIES = 100  # random starts
_PROBES = 100  # of the first gradient estimate; their number grows with the square root of the iteration
_FEWEST = 20  # probes below which a gradient estimate is not worth its queries
_AT_ONCE = 8  # probes of each sample that are held in memory
_SHRINKS = 10  # of a step that leaves the adversarial region
_BISECTIONS = 16  # at most: below 2^-16 of the distance the arithmetic of float32 decides


@dataclass(frozen=True, kw_only=True)
class HopSkipJump(QueryAttack):
    """Shortest perturbations in l2 or linf from predicted labels alone (Chen, Jordan and Wainwright 2020).

    From a misclassified start the attack bisects to the decision boundary and then repeats three steps: estimate the
    direction normal to the boundary from the labels of random points nearby, step along it as far as the point stays
    misclassified, and bisect toward x again. Starts are uniform noise in the box; ``given["start"]`` of the rows holds
    points to try first. With ``targeted`` the label wanted is ``given["target"]``; noise is rarely classified as the
    target, so give starts too. The first query is x itself.
    """

    threat: Threat
    queries: int = 5000
    targeted: bool = False
    keep = "closest"
    norms = ("l2", "linf")

    def search(self, oracle: Oracle, x: Tensor, rows: Rows, rng: Rng) -> Tensor:
        """The closest points found; x where there is no start."""
        parts = [_Walk(self, oracle, ids, x[ids], rows.take(ids), rng) for ids in micro_batches(x)]
        return torch.cat([x[:0], *(part.closest() for part in parts)])


class _Walk:
    """The walk of a micro-batch of samples along the decision boundary.

    ``best`` is the closest misclassified point of each sample and ``point`` the one where it is; ``who`` in the methods
    holds positions of samples in the micro-batch.
    """

    def __init__(self, attack: HopSkipJump, oracle: Oracle, ids: Tensor, x: Tensor, rows: Rows, rng: Rng) -> None:
        self.threat, self.oracle, self.queries = attack.threat, oracle, attack.queries
        self.ids, self.x, self.rows, self.rng = ids, x, rows, rng
        self.best, self.point = x.clone(), x.clone()
        self.started = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.size = x[:1].numel()
        exponent = 1.5 if self.l2 else 2.0  # the precision of bisections is d^-1.5 in l2 and d^-2 in linf
        self.bisections = max(1, min(_BISECTIONS, ceil(exponent * log2(max(2, self.size)))))

    @property
    def l2(self) -> bool:
        """True in l2, False in linf."""
        return self.threat.norm.name == "l2"

    def closest(self) -> Tensor:
        """Walk until no sample has queries for another iteration; returns the closest points."""
        who = self._started()
        self._approach(who, self.point[who])
        reserve, t = _SHRINKS + self.bisections, 1
        while True:
            who = (self.started & (self._left() >= _FEWEST + reserve)).nonzero().squeeze(1)
            if not len(who):
                return self.best
            probes = (self._left()[who] - reserve).clamp_max(int(_PROBES * sqrt(t)))
            direction = self._normal(who, probes, t)
            moved, where = self._stepped(who, direction, t)
            self._approach(who[moved], where[moved])
            t += 1

    def _left(self) -> Tensor:
        return self.oracle.left[self.ids]

    def _reached(self, who: Tensor, x_adv: Tensor) -> Tensor:
        return self.oracle(self.ids[who], x_adv).reached

    def _started(self) -> Tensor:
        """Ask for x, then for starts until one is misclassified; returns the samples that have a start other than x."""
        who = torch.arange(len(self.x), device=self.x.device)
        who = who[~self._reached(who, self.x)]
        given = "start" in self.rows.given
        for number in range(_TRIES + given):
            who = who[self._left()[who] > self.bisections]
            if not len(who):
                break
            tried = self.rows["start"][who].to(self.x) if given and number == 0 else self._noise(who, number)
            tried = tried.clamp(self.threat.low, self.threat.high)
            reached = self._reached(who, tried)
            self.point[who[reached]] = tried[reached]
            self.started[who[reached]] = True
            who = who[~reached]
        return self.started.nonzero().squeeze(1)

    def _noise(self, who: Tensor, number: int) -> Tensor:
        """Uniform noise in the part of the box within reach."""
        x = self.x[who]
        far = column(reach(x, self.threat), x)
        low, high = (x - far).clamp_min(self.threat.low), (x + far).clamp_max(self.threat.high)
        u = self.rng.fork("start").fork(number).at(self.rows.index[who]).uniform(x)
        return low + u * (high - low)

    def _approach(self, who: Tensor, x_adv: Tensor) -> None:
        """Bisect between x and misclassified points; the samples are then at the boundary, on its far side."""
        if not len(who):
            return
        low = torch.zeros_like(self.x[who].flatten(1)[:, 0])
        high, target = torch.ones_like(low), x_adv
        for _ in range(self.bisections):
            middle = (low + high) / 2
            between = self._between(self.x[who], target, middle)
            reached = self._reached(who, between)
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
            x_adv = torch.where(column(reached, x_adv), between, x_adv)
        self.point[who] = x_adv
        unknown = (self.best[who] == self.x[who]).flatten(1).all(1)
        closer = unknown | (self._distance(who, x_adv) < self._distance(who, self.best[who]))
        self.best[who[closer]] = x_adv[closer]

    def _between(self, x: Tensor, x_adv: Tensor, share: Tensor) -> Tensor:
        """The point nearest to x_adv within this share of its distance from x."""
        d, share = x_adv - x, column(share, x)
        if self.l2:
            return x + share * d
        bound = share * column(self.threat.norm.length(d), d)
        return x + d.clamp(-bound, bound)

    def _distance(self, who: Tensor, x_adv: Tensor) -> Tensor:
        return self.threat.norm.length(x_adv - self.x[who])

    def _normal(self, who: Tensor, probes: Tensor, t: int) -> Tensor:
        """The estimated unit normal of the boundary, into the misclassified side; its signs in linf.

        With labels v = 1 and -1 of the points x_adv + length·u it is the sum of (v - mean(v))·u; v is not centered
        where all labels agree.
        """
        point, length = self.point[who], self._probe_length(who, t)
        sums = torch.zeros_like(point), torch.zeros_like(point), torch.zeros_like(length)
        asked = self.queries - self._left()[who]
        for number in range(0, int(probes.max()), _AT_ONCE):
            numbers = torch.arange(number, number + _AT_ONCE, device=probes.device)
            u, v = self._probe(who, length, asked, numbers, numbers < probes[:, None])
            # one by one: the sums must not depend on how many fit into memory
            for one, sign in zip(u.unbind(1), v.unbind(1), strict=True):
                sums[0].add_(one * column(sign, one))
                sums[1].add_(one * column(sign.abs(), one))
                sums[2].add_(sign)
        mean = sums[2] / probes
        normal = sums[0] - column(torch.where(mean.abs() < 1, mean, 0), point) * sums[1]
        return self.threat.norm.steepest(normal)

    def _probe_length(self, who: Tensor, t: int) -> Tensor:
        """The L2 length of probes: a tenth of the box at first, then the distance divided by the dimension."""
        distance = self._distance(who, self.point[who])
        if t > 1:
            return distance / self.size
        return 0.1 * torch.full_like(distance, self.threat.high - self.threat.low).clamp_max(10 * distance)

    def _probe(
        self, who: Tensor, length: Tensor, asked: Tensor, numbers: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Directions u (b, k, ...) after clipping to the box, and labels v (b, k): 1, -1, or 0 where not wanted."""
        b, k = wanted.shape
        point, index = self.point[who], self.rows.index[who].repeat_interleave(k)
        rng = self.rng.fork("probe").at(index).at((asked[:, None] + numbers).flatten())
        like = point.new_empty(b * k, *point.shape[1:])
        u = rng.normal(like) if self.l2 else 2 * rng.uniform(like) - 1
        u = u / column(torch.linalg.vector_norm(u.flatten(1), dim=1), u)
        center, scale = point.repeat_interleave(k, 0), column(length.repeat_interleave(k), u)
        probe = (center + scale * u).clamp(self.threat.low, self.threat.high)
        flat, v = wanted.flatten(), torch.zeros(b * k, dtype=point.dtype, device=point.device)
        reached = self._reached(who.repeat_interleave(k)[flat], probe[flat])
        v[flat] = torch.where(reached, 1, -1).to(v)
        return ((probe - center) / scale).reshape(b, k, *point.shape[1:]), v.reshape(b, k)

    def _stepped(self, who: Tensor, direction: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Steps of the distance / sqrt(t), halved until misclassified: which samples moved, (b,), and the points."""
        where, moved = self.point[who].clone(), torch.zeros_like(self.started[who])
        size = self._distance(who, where) / sqrt(t)
        todo = torch.arange(len(who), device=who.device)
        for _ in range(_SHRINKS):
            step = column(size[todo], direction) * direction[todo]
            x_adv = (where[todo] + step).clamp(self.threat.low, self.threat.high)
            reached = self._reached(who[todo], x_adv)
            where[todo[reached]] = x_adv[reached]
            moved[todo[reached]] = True
            size, todo = size / 2, todo[~reached]
            if not len(todo):
                break
        return moved, where
