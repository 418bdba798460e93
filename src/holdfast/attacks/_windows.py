"""The random perturbations of Square Attack: windows of an image, and what they hold in each norm.

``start`` returns the state of samples that enter, their first points as ``best``; ``windows`` what is random in a move,
by name, and ``move`` the next points to try. All random numbers come in as uniform draws u, (b, draws), so that a test
can give those of a reference. Images of a batch may have windows of different sizes, because samples enter the batch at
different times; ``level`` says how often the area of a sample's windows has halved.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor

from holdfast.geometry import Threat

HALVED = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""At which of 10,000 queries the area of the windows halves."""

_TINY = 1e-12  # as in AutoAttack; keeps empty windows finite


@dataclass(frozen=True)
class _Moves:
    """The threat, inputs of the shape that is attacked, and the share of the image that a window covers at first."""

    threat: Threat
    like: Tensor
    p: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width; inputs that are not images are one row."""
        return (*self.like.shape[1:],) if self.like.ndim == 4 else (1, 1, self.like[:1].numel())

    def image(self, x: Tensor) -> Tensor:
        """x as (b, channels, height, width)."""
        return x.reshape(len(x), *self.shape)

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Images back in the shape of x, inside the threat."""
        return self.threat.project(x_adv.reshape(x.shape), x)

    @cached_property
    def sizes(self) -> Tensor:
        """Height and width of the windows, (levels, 2)."""
        h, w = self.shape[1:]
        sizes = [
            window(self.p / 2**level, h, w, odd=self.threat.norm.name != "linf") for level in range(len(HALVED) + 1)
        ]
        return torch.tensor(sizes, device=self.like.device)

    @cached_property
    def _places(self) -> Tensor:
        """In how many rows and columns a window can begin, (levels, 2)."""
        return torch.tensor(self.shape[1:], device=self.like.device) - self.sizes + 1

    @cached_property
    def _grid(self) -> tuple[Tensor, Tensor]:
        """The numbers of the rows and of the columns."""
        h, w = (torch.arange(n, device=self.like.device) for n in self.shape[1:])
        return h, w

    def offsets(self, level: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where pixels lie relative to windows at random places, rows (b, h, 1) and columns (b, 1, w), and which of
        these the windows cover, (b, 1, h, 1) and (b, 1, 1, w); ``u`` holds a draw for the row and one for the column.
        """
        sizes = self.sizes[level]
        corner = (u * self._places[level]).long()
        i, j = (grid - corner[:, axis, None] for axis, grid in enumerate(self._grid))
        rows, columns = ((place >= 0) & (place < sizes[:, axis, None]) for axis, place in enumerate((i, j)))
        return i[:, :, None], j[:, None, :], rows[:, None, :, None], columns[:, None, None, :]


def window(p: float, h: int, w: int, odd: bool) -> tuple[int, int]:
    """Height and width of a square that covers the share p of an image, wider or higher where it does not fit."""
    side = max(round(sqrt(p * h * w)), 3 if odd else 1)
    long = max(round(p * max(h, w)), side)  # beside a short side that is covered entirely
    side, long = (n + 1 if odd and n % 2 == 0 else n for n in (side, long))
    if side <= min(h, w):
        return side, side
    return min(h, side if h <= w else long), min(w, long if h <= w else side)


def signs(u: Tensor) -> Tensor:
    """Random signs from uniform draws."""
    return torch.where(u > 0.5, 1.0, -1.0).to(u)


class Signs(_Moves):
    """linf: the perturbation is eps or -eps everywhere, at first in vertical stripes."""

    @property
    def start_draws(self) -> int:
        """A sign for each channel and column."""
        return self.shape[0] * self.shape[2]

    @property
    def draws(self) -> int:
        """The place of the window, and a sign for each channel."""
        return 2 + self.shape[0]

    def start(self, x: Tensor, u: Tensor) -> dict[str, Tensor]:
        """Vertical stripes, and the corners of the threat."""
        c, _, w = self.shape
        low, high = (self.threat.project(x + sign * self.threat.eps, x) for sign in (-1, 1))
        up = u.reshape(len(x), c, 1, w) > 0.5
        stripes = torch.where(up, self.image(high), self.image(low))
        return {"best": stripes.reshape(x.shape), "low": low, "high": high}

    def windows(self, level: Tensor, u: Tensor) -> dict[str, Tensor]:
        """The rows and columns of a window, and a sign for each channel."""
        _, _, rows, columns = self.offsets(level, u[:, :2])
        return {"rows": rows, "columns": columns, "up": u[:, 2:, None, None] > 0.5}

    def move(self, x: Tensor, state: dict[str, Tensor], windows: dict[str, Tensor]) -> Tensor:
        """A window of one sign per channel; the opposite signs where that would change nothing."""
        inside, up = windows["rows"] & windows["columns"], windows["up"]
        old, low, high = (self.image(state[name]) for name in ("best", "low", "high"))
        same = ((torch.where(up, high, low) == old) | ~inside).flatten(1).all(1)[:, None, None, None]
        return torch.where(inside, torch.where(up ^ same, high, low), old).reshape(x.shape)


class Bumps(_Moves):
    """l2 and l1: pairs of bumps of opposite sign, and mass that moves from one window to another."""

    @property
    def l2(self) -> bool:
        """True in l2, False in l1."""
        return self.threat.norm.name == "l2"

    @property
    def tiles(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Side, offset and number of the tiles of the start, vertically and horizontally."""
        _, h, w = self.shape
        sides = max(1, h // 5), max(1, w // 5)
        first, second = ((side, max(0, n - 5 * side) // 2, n // side) for side, n in zip(sides, (h, w), strict=True))
        return first, second

    @property
    def start_draws(self) -> int:
        """Of each tile, the orientation and a sign for each channel."""
        return self.tiles[0][2] * self.tiles[1][2] * (1 + self.shape[0])

    @property
    def draws(self) -> int:
        """The places of two windows, the orientation, and a sign for each channel."""
        return 5 + self.shape[0]

    def start(self, x: Tensor, u: Tensor) -> dict[str, Tensor]:
        """Tiles of bumps with random orientations and signs."""
        (a, top, down), (b, left, across) = self.tiles
        c = self.shape[0]
        i, j = self._grid[0] - top, self._grid[1] - left
        table = torch.stack([pair(a, b, self.l2), pair(b, a, self.l2).T]).to(x)
        u = u.reshape(len(x), down, across, 1 + c)[:, (i // a).clamp(0, down - 1)][:, :, (j // b).clamp(0, across - 1)]
        turned = (u[..., 0] > 0.5).long()
        covered = ((i >= 0) & (i < a * down))[:, None] & ((j >= 0) & (j < b * across))
        shape = table[turned, (i % a)[:, None], (j % b)[None]] * covered
        d = shape[:, None] * signs(u[..., 1:]).movedim(-1, 1)
        return {"best": self.project(self.image(x) + (self._scaled(d) if self.l2 else d), x)}

    def windows(self, level: Tensor, u: Tensor) -> dict[str, Tensor]:
        """How often the area has halved, and the draws."""
        return {"level": level, "u": u}

    def move(self, x: Tensor, state: dict[str, Tensor], windows: dict[str, Tensor]) -> Tensor:
        """Bumps are added to one window, which gets the mass of a second one, emptied, and what is left of eps."""
        d, level, u = self.image(state["best"]) - self.image(x), windows["level"], windows["u"]
        i, j, *first_window = self.offsets(level, u[:, :2])
        _, _, *second_window = self.offsets(level, u[:, 2:4])
        first, second = (rows & columns for rows, columns in (first_window, second_window))
        bumps = self._bumps(level, (u[:, 4] > 0.5).long(), i, j)[:, None] * first
        old = d * first
        new = bumps * signs(u[:, 5:])[:, :, None, None] + old / (self._length(old) + _TINY)
        new = new / (self._length(new) + _TINY) * self._mass(d, self._length(d * (first | second)))
        d = torch.where(first, new, torch.where(second, 0.0, d))
        return self.project(self.image(x) + (self._scaled(d) if self.l2 else d), x)

    def _mass(self, d: Tensor, windows: Tensor) -> Tensor:
        """The length that each channel of the first window gets, (b, c, 1, 1)."""
        eps, c = self.threat.eps, self.shape[0]
        if self.l2:
            unused = (eps**2 - d.square().sum((1, 2, 3), keepdim=True)).clamp_min(0)
            return (unused / c + windows.square()).sqrt()
        return (eps - d.abs().sum((1, 2, 3), keepdim=True)).clamp_min(0) + c * windows

    def _length(self, d: Tensor) -> Tensor:
        """The length of each channel, (b, c, 1, 1)."""
        total = (d.square() if self.l2 else d.abs()).sum((2, 3), keepdim=True)
        return total.sqrt() if self.l2 else total

    def _scaled(self, d: Tensor) -> Tensor:
        return self.threat.eps * d / (d.square().sum((1, 2, 3), keepdim=True).sqrt() + _TINY)

    def _bumps(self, level: Tensor, turned: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The values of bumps in windows, (b, h, w); outside of the windows they mean nothing."""
        table = self._table
        i, j = i.clamp(0, table.shape[2] - 1), j.clamp(0, table.shape[3] - 1)
        return table[level[:, None, None], turned[:, None, None], i, j]

    @cached_property
    def _table(self) -> Tensor:
        """The bumps of each level in both orientations, (levels, 2, height, width), padded with zeros."""
        sizes = self.sizes.tolist()
        table = self.like.new_zeros(len(sizes), 2, *self.sizes.amax(0).tolist())
        for level, (a, b) in enumerate(sizes):
            table[level, 0, :a, :b] = pair(a, b, self.l2)
            table[level, 1, :a, :b] = pair(b, a, self.l2).T
        return table


def pair(a: int, b: int, l2: bool) -> Tensor:
    """A bump over the upper half of a window (a, b) and a negative one over the rest, of length one together."""
    both = torch.cat([bump(a // 2, b, l2), -bump(a - a // 2, b, l2)])
    return both / (both.square().sum().sqrt() if l2 else both.abs().sum())


def bump(a: int, b: int, l2: bool) -> Tensor:
    """Pyramid over a window (a, b), of length one: the sum of (k + 1)^-2 (l2; ^-4 in l1) over the centered squares of
    side 2k + 1 that contain the pixel."""
    if not a:
        return torch.zeros(0, b, dtype=torch.float64)
    rows, columns = (torch.arange(n) - n // 2 for n in (a, b))
    distance = torch.maximum(rows.abs()[:, None], columns.abs()[None])
    heights = torch.arange(1, max(a // 2, b // 2) + 2, dtype=torch.float64) ** (-2 if l2 else -4)
    found = heights.flip(0).cumsum(0).flip(0)[distance]
    return found / (found.square().sum().sqrt() if l2 else found.sum())
