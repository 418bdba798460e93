"""Data augmentation of batches in [0, 1], with independent random numbers for each sample.

Key the rng by step and sample, ``rng.fork(step).at(batch.index)``: the augmentation of a sample then does not depend on
the batch it is in, and changes from step to step.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.rng import Rng


def _uniform(x: Tensor, count: int, rng: Rng) -> Tensor:
    return rng.uniform(torch.empty(len(x), count, device=x.device))  # float32 even if x has half precision


def _check_images(x: Tensor) -> None:
    if x.ndim != 4:
        raise ValueError(f"x has shape {tuple(x.shape)} but cropping and flipping need images, (b, channels, h, w)")


@dataclass(frozen=True, kw_only=True)
class PadCrop:
    """Pad each side by ``pad`` pixels and crop a window of the original size at a random position.

    TLA pads CIFAR-10 by 2 and Tiny-ImageNet by 4, TRADES pads by 4, all with zeros; LLR pads by 4 with reflection.
    """

    pad: int
    mode: Literal["zero", "reflect"] = "zero"

    def __post_init__(self) -> None:
        if self.pad < 1 or self.mode not in ("zero", "reflect"):
            raise ValueError(
                f"pad = {self.pad} and mode = {self.mode!r} were given; pad 1 or more with zero or reflect"
            )

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """Return the batch (b, c, h, w) with each image shifted by up to ``pad`` pixels."""
        _check_images(x)
        if self.mode == "reflect" and self.pad >= min(x.shape[-2:]):
            raise ValueError(f"{self.pad} pixels cannot be reflected in images of {tuple(x.shape[-2:])}; pad less")
        padded = F.pad(x, (self.pad,) * 4, mode="constant" if self.mode == "zero" else "reflect")
        windows = padded.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # a view of all windows, without a copy
        down, right = (_uniform(x, 2, rng.fork("crop")) * (2 * self.pad + 1)).long().unbind(1)
        return windows[torch.arange(len(x), device=x.device), :, down, right]


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Flip images horizontally with probability ``share``."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share = {self.share} was given; flip with a probability from 0 to 1")

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """Return the batch (b, c, h, w) with some images flipped."""
        _check_images(x)
        flipped = _uniform(x, 1, rng.fork("flip"))[:, 0] < self.share
        return torch.where(flipped[:, None, None, None], x.flip(-1), x)


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Multiply the HSV saturation by a random factor in [low, high], as TensorFlow's random_saturation does.

    The TLA paper uses it for Tiny-ImageNet without stating the range, and the authors' code does not contain it.
    """

    low: float = 0.5
    high: float = 1.5

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < float("inf"):
            raise ValueError(f"low = {self.low} and high = {self.high} were given; give 0 <= low <= high")

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """Return the batch (b, 3, h, w) with the saturation of each image changed."""
        if x.ndim != 4 or x.shape[1] != 3:
            raise ValueError(f"x has shape {tuple(x.shape)} but saturation needs colors, (b, 3, height, width)")
        factor = self.low + (self.high - self.low) * _uniform(x, 1, rng.fork("saturation"))[:, 0]
        factor = factor.to(x.dtype)[:, None, None, None]
        bright, dark = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        # value and hue are constant, so differences from the brightest channel scale; the darkest cannot fall below 0
        most = bright / (bright - dark).clamp_min(torch.finfo(x.dtype).tiny)
        return (bright - (bright - x) * torch.minimum(factor, most)).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The augmentation of training images: the given transforms in this order; by default none."""

    pad_crop: PadCrop | None = None
    flip: Flip | None = None
    saturation: Saturation | None = None

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        for transform in (self.pad_crop, self.flip, self.saturation):
            x = x if transform is None else transform(x, rng)
        return x
