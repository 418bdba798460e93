import colorsys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.data.augment import Augment, Flip, PadCrop, Saturation
from holdfast.rng import Rng


def images(n=6, c=3, h=5, w=7, dtype=torch.float32, seed=0):
    return torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def reflected(i, n):
    return -i if i < 0 else 2 * (n - 1) - i if i >= n else i


def shifted(x, down, right, mode):
    """Crop one image pixel by pixel, with an offset of (down, right)."""
    out = torch.zeros_like(x)
    _, h, w = x.shape
    for i in range(h):
        for j in range(w):
            a, b = i + down, j + right
            if mode == "reflect":
                out[:, i, j] = x[:, reflected(a, h), reflected(b, w)]
            elif 0 <= a < h and 0 <= b < w:
                out[:, i, j] = x[:, a, b]
    return out


@pytest.mark.parametrize("mode", ["zero", "reflect"])
@pytest.mark.parametrize("pad", [1, 2, 4])
def test_pad_crop_is_a_shift_of_each_image(mode, pad):
    x = images(n=8)
    out = PadCrop(pad=pad, mode=mode)(x, Rng(3))
    u = Rng(3).fork("crop").uniform(torch.empty(8, 2))
    for one, image, (down, right) in zip(out, x, u.tolist(), strict=True):
        moved = [int(v * (2 * pad + 1)) - pad for v in (down, right)]
        assert torch.equal(one, shifted(image, *moved, mode))


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_crop_positions_are_uniform(mode):
    x = images(n=1, h=6, w=6).expand(9000, -1, -1, -1)
    out = PadCrop(pad=1, mode=mode)(x, Rng(1))
    places = [shifted(x[0], down, right, mode) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    counts = torch.tensor([int((out == place).flatten(1).all(1).sum()) for place in places])
    assert counts.sum() == 9000
    assert ((counts - 1000).abs() < 5 * 30).all()  # five standard deviations


def test_half_of_the_images_are_flipped():
    x = images(n=2000, h=2, w=2)
    out = Flip()(x, Rng(2))
    flipped = (out == x.flip(-1)).flatten(1).all(1)
    kept = (out == x).flatten(1).all(1)
    assert torch.equal(flipped, ~kept)
    assert abs(int(flipped.sum()) - 1000) < 5 * 23
    drawn = Rng(2).fork("flip").uniform(torch.empty(2000, 1))[:, 0]
    assert torch.equal(flipped, drawn < 0.5)


def test_flip_with_probability_one_and_zero():
    x = images()
    assert torch.equal(Flip(share=1)(x, Rng(0)), x.flip(-1))
    assert torch.equal(Flip(share=0)(x, Rng(0)), x)


def saturated(pixel, factor):
    hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb(hue, min(1.0, saturation * factor), value)


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.5), (0, 0), (1, 1), (3, 3), (0, 10)])
def test_saturation_agrees_with_hsv(low, high):
    x = images(n=5, h=3, w=3, dtype=torch.float64)
    x[0] = 0
    x[1] = 1
    x[2, :, 0, 0] = torch.tensor([1.0, 0.0, 0.0])
    x[3, 1:] = 0
    out = Saturation(low=low, high=high)(x, Rng(4))
    u = Rng(4).fork("saturation").uniform(torch.empty(5, 1))[:, 0].tolist()
    for one, image, v in zip(out, x, u, strict=True):
        factor = low + (high - low) * v
        for i in range(3):
            for j in range(3):
                expected = saturated(image[:, i, j].tolist(), factor)
                assert one[:, i, j].tolist() == pytest.approx(expected, abs=1e-6)


def test_saturation_1_is_the_identity_and_0_is_gray():
    x = images()
    assert torch.allclose(Saturation(low=1, high=1)(x, Rng(0)), x, atol=1e-6)
    gray = Saturation(low=0, high=0)(x, Rng(0))
    assert torch.equal(gray, x.amax(1, keepdim=True).expand_as(x))


ALL = [PadCrop(pad=2), PadCrop(pad=2, mode="reflect"), Flip(), Saturation(), Saturation(low=0, high=50)]
ALL += [Augment(pad_crop=ALL[0], flip=ALL[2], saturation=ALL[3])]


@pytest.mark.parametrize("change", ALL, ids=str)
@given(order=st.permutations(list(range(7))), cut=st.integers(1, 6))
def test_augmentation_does_not_depend_on_the_batch(change, order, cut):
    x, index = images(n=7), torch.arange(7) + 30
    whole = change(x, Rng(5).at(index))
    some = torch.tensor(order)[:cut]
    assert torch.equal(change(x[some], Rng(5).at(index[some])), whole[some])


@pytest.mark.parametrize("change", ALL, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_augmentation_keeps_shape_type_and_range(change, dtype):
    x = images(n=200, dtype=dtype)
    x[:50] = (x[:50] * 2).floor().clamp(max=1)  # pure colors
    before = x.clone()
    out = change(x, Rng(6))
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert out.min() >= 0
    assert out.max() <= 1
    assert torch.equal(x, before)
    assert not torch.equal(out, x)


def test_augmentation_depends_on_seed_and_step():
    x = images(n=64)
    for change in ALL:
        first = change(x, Rng(1).fork(1))
        assert torch.equal(first, change(x, Rng(1).fork(1)))
        assert not torch.equal(first, change(x, Rng(1).fork(2)))


def test_crop_and_flip_of_one_rng_are_independent():
    n, rng = 4000, Rng(9)
    right = rng.fork("crop").uniform(torch.empty(n, 2))[:, 1]
    flip = rng.fork("flip").uniform(torch.empty(n, 1))[:, 0]
    assert abs(float(torch.corrcoef(torch.stack([right, flip]))[0, 1])) < 5 / n**0.5
    x = images(n=32)
    both = Augment(flip=Flip(), pad_crop=PadCrop(pad=2))(x, rng)
    assert torch.equal(both, Flip()(PadCrop(pad=2)(x, rng), rng))
    assert torch.equal(Augment()(x, rng), x)


REFUSED = [
    (lambda: PadCrop(pad=0), "pad = 0 and mode = 'zero' were given; pad 1 or more"),
    (lambda: PadCrop(pad=1, mode="edge"), "mode = 'edge' were given"),
    (lambda: Flip(share=1.5), "share = 1.5 was given; flip with a probability"),
    (lambda: Flip(share=float("nan")), "share = nan was given"),
    (lambda: Saturation(low=2, high=1), "low = 2 and high = 1 were given"),
    (lambda: Saturation(low=-1), "low = -1 and high = 1.5 were given"),
    (lambda: Saturation(high=float("inf")), "high = inf were given"),
    (lambda: Saturation()(images(c=1), Rng(0)), r"x has shape \(6, 1, 5, 7\) but saturation needs colors"),
    (lambda: Flip()(images()[0], Rng(0)), r"x has shape \(3, 5, 7\) but cropping and flipping need images"),
    (lambda: PadCrop(pad=1)(torch.rand(4, 9), Rng(0)), r"x has shape \(4, 9\) but cropping and flipping"),
    (lambda: PadCrop(pad=5, mode="reflect")(images(), Rng(0)), r"5 pixels cannot be reflected in images of \(5, 7\)"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_invalid_settings_and_inputs_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
