"""Random numbers that belong to samples, not to batches.

A draw is a pure function of (key, row, element): nothing advances, so there is no state to save, and a sample gets
the same numbers whatever batch, order, shard or restart of the process it is drawn in. The generator is SplitMix64
(Steele, Lea and Flood 2014) read as a counter: a stream starts at its row's key and each element is one mix away.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 1 << 64


def _signed(value: int) -> int:
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def _shift(bits: Tensor, by: int) -> Tensor:
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)  # torch shifts arithmetically; the mask makes it logical


def _mix(bits: Tensor) -> Tensor:
    """SplitMix64's mixing of numbers that nobody else reads: they are overwritten."""
    bits.bitwise_xor_(_shift(bits, 30)).mul_(_signed(_FIRST))
    bits.bitwise_xor_(_shift(bits, 27)).mul_(_signed(_SECOND))
    return bits.bitwise_xor_(_shift(bits, 31))


@dataclass(frozen=True, eq=False)
class Rng:
    """A source of random numbers for the rows of a batch.

    ``Rng(seed)`` keys rows by their position; ``rng.at(index)`` keys them by whatever identifies the samples.
    ``rng.fork("start")`` is an independent source. Two draws of one source are equal: fork before drawing again.
    """

    seed: int = 0
    rows: Tensor | None = None

    def fork(self, name: str | int) -> Rng:
        """An independent source with the same rows, named by its purpose."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        return Rng(int.from_bytes(digest, "little") >> 1, self.rows)

    def at(self, index: Tensor) -> Rng:
        """The same source with rows keyed by ``index``; keys given before stay part of the key."""
        index = index.to(torch.int64)
        known = index if self.rows is None else self.rows.to(index.device) + index
        return Rng(self.seed, _mix(known * _signed(_GOLDEN) + 1))

    def generator(self) -> torch.Generator:
        """A torch generator on the CPU, for what only torch can draw (permutations)."""
        return torch.Generator().manual_seed(_signed(self.fork("generator").seed) % (_WORD // 2))

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform numbers in the open interval (0, 1), of the shape, type and device of ``like``."""
        keep = 52 if like.dtype == torch.float64 else 23
        whole = _shift(self._bits(like), 64 - keep)
        exact = torch.float64 if like.dtype == torch.float64 else torch.float32
        u = whole.to(exact).add_(0.5).div_(1 << keep).to(like.dtype)
        return u.clamp_max_(1 - torch.finfo(like.dtype).eps / 2).reshape(like.shape)  # half precision would round to 1

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers, of the shape, type and device of ``like``."""
        exact = like if like.dtype in (torch.float32, torch.float64) else like.float()  # ndtri knows only these
        normal: Tensor = torch.special.ndtri(self.uniform(exact))
        return normal.to(like.dtype)

    def _bits(self, like: Tensor) -> Tensor:
        rows = self.rows
        if rows is None:
            rows = self.at(torch.arange(len(like))).rows
        assert rows is not None
        if len(rows) != len(like):
            raise ValueError(f"this rng is keyed for {len(rows)} rows but {len(like)} were asked for")
        element = torch.arange(1, like[:1].numel() + 1, device=like.device)
        stream = _mix(rows.to(like.device) ^ _signed(self.seed * _GOLDEN))
        return _mix(stream[:, None] + element[None] * _signed(_GOLDEN))
