"""Augmentation of a batch in [0, 1] as tensor code: each sample draws its own numbers from the rng.

Key the rng by sample and step, ``rng.fork(step).at(batch.index)``: a sample is then changed in the same way whatever
batch it is in, and anew at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.rng import Rng


def _uniform(x: Tensor, many: int, rng: Rng) -> Tensor:
    return rng.uniform(torch.empty(len(x), many, device=x.device))  # float32 also where x has half precision


def _refuse_unless_images(x: Tensor) -> None:
    if x.ndim != 4:
        raise ValueError(f"x has shape {tuple(x.shape)} but cropping and flipping need images, (b, channels, h, w)")


@dataclass(frozen=True, kw_only=True)
class PadCrop:
    """Pad ``pad`` pixels a side, then cut out a window of the old size at a random place.

    TLA pads CIFAR-10 by 2 and Tiny-ImageNet by 4, TRADES pads by 4, each with zeros; LLR reflects 4.
    """

    pad: int
    mode: Literal["zero", "reflect"] = "zero"

    def __post_init__(self) -> None:
        if self.pad < 1 or self.mode not in ("zero", "reflect"):
            raise ValueError(
                f"pad = {self.pad} and mode = {self.mode!r} were given; pad 1 or more with zero or reflect"
            )

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """The batch (b, c, h, w), each sample shifted by up to ``pad`` pixels."""
        _refuse_unless_images(x)
        if self.mode == "reflect" and self.pad >= min(x.shape[-2:]):
            raise ValueError(f"{self.pad} pixels cannot be reflected in images of {tuple(x.shape[-2:])}; pad less")
        padded = F.pad(x, (self.pad,) * 4, mode="constant" if self.mode == "zero" else "reflect")
        windows = padded.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # a view: all places, nothing copied
        down, right = (_uniform(x, 2, rng.fork("crop")) * (2 * self.pad + 1)).long().unbind(1)
        return windows[torch.arange(len(x), device=x.device), :, down, right]


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Mirror left and right, with this probability."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share = {self.share} was given; flip with a probability from 0 to 1")

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """The batch (b, c, h, w), some samples mirrored."""
        _refuse_unless_images(x)
        flipped = _uniform(x, 1, rng.fork("flip"))[:, 0] < self.share
        return torch.where(flipped[:, None, None, None], x.flip(-1), x)


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Multiply the saturation of HSV by a factor between ``low`` and ``high``, as TensorFlow's random_saturation.

    The TLA paper names it for Tiny-ImageNet without its range, and the authors' code does not have it.
    """

    low: float = 0.5
    high: float = 1.5

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < float("inf"):
            raise ValueError(f"low = {self.low} and high = {self.high} were given; give 0 <= low <= high")

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """The batch (b, 3, h, w), each sample with another saturation."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise ValueError(f"x has shape {tuple(x.shape)} but saturation needs colours, (b, 3, height, width)")
        drawn = self.low + (self.high - self.low) * _uniform(x, 1, rng.fork("saturation"))[:, 0]
        factor = drawn.to(x.dtype)[:, None, None, None]
        bright, dark = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        # value and hue stay, so distances from the brightest channel scale; at saturation 1 the darkest channel is 0
        most = bright / (bright - dark).clamp_min(torch.finfo(x.dtype).tiny)
        return (bright - (bright - x) * torch.minimum(factor, most)).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What is done to every image that training sees, in this order; nothing unless named."""

    pad_crop: PadCrop | None = None
    flip: Flip | None = None
    saturation: Saturation | None = None

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """The batch after all that is named."""
        for change in (self.pad_crop, self.flip, self.saturation):
            x = x if change is None else change(x, rng)
        return x
