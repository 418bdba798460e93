"""Per-image standardization compared with numpy on 0..255 pixels, its gradient with finite differences."""

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.models.classifier import PerImage
from holdfast.rng import Rng


def by_hand(x: Tensor) -> np.ndarray:
    """The published definition on 0..255: (pixel - mean) / max(std, 1 / sqrt(n)), one image at a time."""
    images = 255 * x.numpy()
    return np.stack([(im - im.mean()) / max(im.std(), 1 / np.sqrt(im.size)) for im in images])


@pytest.mark.parametrize("contrast", [1, 1e-2, 1e-4, 1e-6, 0])
def test_per_image_agrees_with_its_published_definition(contrast: float, rng: Rng) -> None:
    x = 0.3 + contrast * (rng.uniform(torch.empty(3, 3, 4, 5, dtype=torch.float64)) - 0.3)
    np.testing.assert_allclose(PerImage()(x).numpy(), by_hand(x), atol=1e-10)


def test_images_do_not_depend_on_each_other(rng: Rng) -> None:
    x = rng.uniform(torch.empty(4, 1, 6, 6))
    torch.testing.assert_close(PerImage()(x)[1:2], PerImage()(x[1:2]))


def test_gradients_flow_through_mean_and_deviation(rng: Rng) -> None:
    x = rng.uniform(torch.empty(2, 1, 3, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(PerImage(), (x,))
    low = (0.5 + 1e-6 * x.detach()).requires_grad_()  # below the smallest standard deviation only the mean depends on x
    (grad,) = torch.autograd.grad(PerImage()(low)[0, 0, 0, 0], low)
    expected = torch.full((9,), -1 / 9, dtype=torch.float64)
    expected[0] += 1
    torch.testing.assert_close(grad[0].flatten(), expected * 255 * 3)
    assert not grad[1].any()


def test_a_constant_image_has_a_finite_gradient() -> None:
    x = torch.full((1, 3, 4, 4), 0.25, requires_grad=True)
    out = PerImage()(x)
    (grad,) = torch.autograd.grad((out * torch.arange(48.0).reshape(out.shape)).sum(), x)
    assert not out.any()
    assert grad.isfinite().all()
    assert grad.abs().max() > 0


def test_results_do_not_depend_on_the_memory_format(rng: Rng) -> None:
    x = rng.uniform(torch.empty(2, 3, 4, 4))
    torch.testing.assert_close(PerImage()(x.contiguous(memory_format=torch.channels_last)), PerImage()(x))
    assert not PerImage().state_dict()


def test_empty_batches_do_not_warn() -> None:
    assert PerImage()(torch.empty(0, 3, 4, 4)).shape == (0, 3, 4, 4)
