"""Changes of images and of their gradients that make adversarial examples transfer better."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.contracts import Rows
from holdfast.rng import Rng


def check_images(x: Tensor, option: str) -> None:
    """Refuse inputs that are not images."""
    if x.ndim != 4:
        raise ValueError(
            f"{option} needs images of shape (b, channels, height, width) but x has shape {tuple(x.shape)}; "
            "leave it out for other inputs"
        )


@dataclass(frozen=True)
class Diversity:
    """Random resizing and padding (DI, Xie et al. 2019), independently for every sample, step and draw.

    With probability ``probability`` an image is resized to a uniformly drawn size between ``smallest`` times its own
    and its own, and padded with zeros to its own size at a uniformly drawn place. Draws are keyed by sample.
    """

    probability: float
    smallest: float
    rng: Rng

    def __call__(self, x: Tensor, rows: Rows, t: Tensor, draw: int) -> Tensor:
        """The changed images; differentiable in x."""
        u = self.rng.fork(draw).at(rows.index).at(t).uniform(x.new_empty(len(x), 4, dtype=torch.float64))
        vertical, horizontal = (
            resizing(x.shape[2 + axis], self.smallest, u[:, 1], u[:, 2 + axis]).to(x) for axis in (0, 1)
        )
        resized = vertical[:, None] @ x @ horizontal[:, None].mT
        return torch.where((u[:, 0] < self.probability).reshape(-1, 1, 1, 1), resized, x)


def resizing(length: int, smallest: float, size: Tensor, place: Tensor) -> Tensor:
    """(b, length, length) matrices that resize a row of pixels by bilinear interpolation and pad it with zeros.

    ``size`` and ``place`` (b,) are uniform in (0, 1): they choose among the sizes from smallest·length up to length,
    exclusive, and among the places of a row of that size. A matrix per sample resizes a batch to different sizes
    without a loop, and its backward pass is deterministic on every device.
    """
    least = max(1, min(ceil(smallest * length), length - 1))
    new = least + (size * (length - least)).floor()
    begin = (place * (length - new + 1)).floor()
    at = torch.arange(length, dtype=size.dtype, device=size.device)
    target = at - begin[:, None]  # position in the resized row
    source = ((target + 0.5) * length / new[:, None] - 0.5).clamp(0, length - 1)
    weight = (1 - (source[:, :, None] - at).abs()).clamp_min(0)
    return weight * ((target >= 0) & (target < new[:, None]))[:, :, None]


def gaussian_smoothing(grad: Tensor, size: int) -> Tensor:
    """The gradient of images convolved with a Gaussian kernel of size x size, padded with zeros (TI, Dong et al. 2019).

    As in the authors' code the kernel ends at three standard deviations, and its weights sum to 1.
    """
    at = torch.linspace(-3, 3, size, dtype=torch.float64)
    kernel = (-at.square() / 2).exp()
    kernel = (kernel / kernel.sum()).to(grad)
    for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):  # the kernel is separable
        weight = kernel.reshape(shape).expand(grad.shape[1], -1, -1, -1)
        grad = functional.conv2d(grad, weight, padding="same", groups=grad.shape[1])
    return grad
