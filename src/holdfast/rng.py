"""Counter-based random numbers that are keyed by sample.

A random number is a pure function of (key, row, element). There is no state to advance or to save, and a sample gets
the same numbers in every batch, order, shard and process. The generator is SplitMix64 (Steele, Lea and Flood 2014) used
as a counter-based generator: the key of a row is the start of its stream, and each element takes one mix.
"""

import math
from collections.abc import Callable
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
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)  # torch's shift is arithmetic; the mask makes it logical


def _mix(bits: Tensor) -> Tensor:
    """Apply the mixing function of SplitMix64 in place."""
    bits = _mix_upper(bits)
    return bits.bitwise_xor_(_shift(bits, 31))


def _mix_upper(bits: Tensor) -> Tensor:
    """The same without its last step, which leaves the upper 31 bits as they are."""
    bits.bitwise_xor_(_shift(bits, 30)).mul_(_signed(_FIRST))
    return bits.bitwise_xor_(_shift(bits, 27)).mul_(_signed(_SECOND))


@dataclass(frozen=True, eq=False)
class Rng:
    """A source of random numbers for the rows of a batch.

    ``Rng(seed)`` keys rows by their position; ``rng.at(index)`` keys them by the index of the samples.
    ``rng.fork("start")`` is an independent source. A source returns the same numbers every time: fork it to get others.
    """

    seed: int = 0
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        if type(self.seed) is not int:
            raise ValueError(f"the seed is {self.seed!r} but must be a whole number")

    def fork(self, name: str | int) -> "Rng":
        """Return an independent source with the same rows; ``name`` is its purpose."""
        digest = blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        return Rng(int.from_bytes(digest, "little") >> 1, self.rows)

    def at(self, index: Tensor) -> "Rng":
        """Return this source with rows keyed by ``index``, in addition to earlier keys."""
        index = index.to(torch.int64)
        key = index if self.rows is None else self.rows.to(index.device) + index
        return Rng(self.seed, _mix(key * _signed(_GOLDEN) + 1))

    def generator(self) -> torch.Generator:
        """Return a torch generator on the CPU, for example for permutations."""
        return torch.Generator().manual_seed(_signed(self.fork("generator").seed) % (_WORD // 2))

    def uniform(self, like: Tensor) -> Tensor:
        """Return uniform numbers in the open interval (0, 1) with the shape, type and device of ``like``."""
        whole, bits = self._whole(like)
        u = whole.add_(0.5).div_(1 << bits).to(like.dtype)
        return u.clamp_max_(1 - torch.finfo(like.dtype).eps / 2).reshape(like.shape)  # half precision could round to 1

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers with the shape, type and device of ``like``."""
        whole, bits = self._whole(like)
        # the inverse of the distribution function at a uniform u; 2 u - 1 is exact, and ndtri takes three times as long
        z = whole.mul_(2 / (1 << bits)).add_(1 / (1 << bits) - 1).erfinv_().mul_(math.sqrt(2))
        return z.to(like.dtype).reshape(like.shape)

    def _whole(self, like: Tensor) -> tuple[Tensor, int]:
        """Whole numbers of so many random bits, in float64 for float64 and else in float32."""
        bits, exact = (52, torch.float64) if like.dtype == torch.float64 else (23, torch.float32)
        return _shift(self._bits(like, _mix if bits > 31 else _mix_upper), 64 - bits).to(exact), bits

    def _bits(self, like: Tensor, mix: Callable[[Tensor], Tensor]) -> Tensor:
        rows = self.rows
        if rows is None:
            rows = self.at(torch.arange(len(like))).rows
        assert rows is not None
        if len(rows) != len(like):
            raise ValueError(f"this rng is keyed for {len(rows)} rows but {len(like)} were asked for")
        element = torch.arange(1, like[:1].numel() + 1, device=like.device)
        stream = _mix(rows.to(like.device) ^ _signed(self.seed * _GOLDEN))
        return mix(stream[:, None] + element[None] * _signed(_GOLDEN))
