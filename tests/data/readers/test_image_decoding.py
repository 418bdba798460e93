import io
import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from holdfast.data.readers import images
from holdfast.data.readers.images import Picture, decode, decode_parts, of_files
from pictures import bomb, encoded, flat

PIXELS = (np.arange(3 * 4 * 3) * 7 % 256).astype(np.uint8).reshape(3, 4, 3)
RED = (200, 0, 0)


@pytest.mark.parametrize("format", ["PNG", "BMP", "PPM"])
def test_pixels_are_decoded_with_channels_first(tmp_path, format):
    (tmp_path / "one").write_bytes(encoded(PIXELS, format))  # the format is detected by content, not by name
    x, gray = decode(of_files([tmp_path / "one"]), (4, 3))
    assert x.dtype == torch.uint8
    assert x[0].tolist() == PIXELS.transpose(2, 0, 1).tolist()
    assert not gray


def test_jpeg_is_decoded_as_by_pillow():
    data = encoded(np.broadcast_to(PIXELS, (3, 4, 3)), "JPEG")
    x, _ = decode([Picture("it", data)], (4, 3))
    with Image.open(io.BytesIO(data)) as image:
        assert x[0].tolist() == np.asarray(image).transpose(2, 0, 1).tolist()


MODES = {
    "L": (flat(90), [90, 90, 90], True),
    "1": (flat(255, mode="1"), [255] * 3, True),
    "LA": (flat(90, mode="LA"), [90] * 3, True),
    "P": (flat((204, 0, 0), mode="P"), [204, 0, 0], False),
    "RGBA": (flat((10, 20, 30, 255)), [10, 20, 30], False),
    "transparent": (flat((10, 20, 30, 7)), [10, 20, 30], False),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_8_bits_becomes_rgb(mode):
    data, color, is_gray = MODES[mode]
    x, gray = decode([Picture("it", data)], (4, 3))
    assert x[0, :, 0, 0].tolist() == pytest.approx(color, abs=1)
    assert gray == is_gray


def test_a_palette_with_transparency_does_not_warn():
    stream = io.BytesIO()
    Image.fromarray(PIXELS).convert("P").save(stream, format="PNG", transparency=bytes([0, 128]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, gray = decode([Picture("it", stream.getvalue())], (4, 3))
    assert x.shape[1] == 3
    assert not gray


def test_one_channel_only_if_all_pictures_are_grayscale():
    gray, color = Picture("gray", flat(90)), Picture("color", flat(RED))
    assert {x.shape[1] for x in decode_parts({"train": [gray] * 2, "test": [gray]}).values()} == {1}
    mixed = decode_parts({"train": [gray] * 2, "test": [gray, color]})
    assert [tuple(x.shape) for x in mixed.values()] == [(2, 3, 3, 4), (2, 3, 3, 4)]
    assert mixed["train"][0, :, 0, 0].tolist() == [90] * 3


def sixteen_bits():
    stream = io.BytesIO()
    Image.fromarray(np.full((3, 4), 60000, np.uint16)).save(stream, format="PNG")
    return stream.getvalue()


def in_format(format):
    return flat(RED, format=format)


GOOD = flat(RED)
REFUSED = {
    "another size": (flat(RED, (3, 4)), "has 3x4 pixels but 4x3 are needed; give all images one size"),
    "bomb": (bomb(60000, 60000), r"cannot be read as .* \(.*decompression bomb.*\)"),
    "bomb that only warns": (bomb(12000, 12000), r"cannot be read as .* \(.*decompression bomb.*\)"),
    "bomb below Pillow's limit": (bomb(5000, 5000), "has 5000x5000 pixels but at most 16777216 are read"),
    "nothing": (b"", "another format or damaged"),
    "text": (b"hello", "another format or damaged"),
    "only a header": (GOOD[:8], "cannot be read as"),
    "EPS, which starts a program": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 3\n%%EndComments\n",
        "another format",
    ),
    "GIF": (in_format("GIF"), "another format"),
    "TIFF": (in_format("TIFF"), "another format"),
    "16 bits": (sixteen_bits(), "has more than 8 bits a channel; save it with 8"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("stored", [True, False])
def test_invalid_pictures_are_refused_in_one_sentence(tmp_path, name, stored):
    data, message = REFUSED[name]
    (tmp_path / "it.png").write_bytes(data)
    picture = of_files([tmp_path / "it.png"])[0] if stored else Picture("it.png", data)
    with pytest.raises(ValueError, match=rf"it\.png .*{message}") as refusal:
        decode([Picture("good", GOOD), picture], (4, 3))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["bomb", "bomb that only warns", "bomb below Pillow's limit"])
def test_a_decompression_bomb_is_refused_as_first_picture(name):
    with pytest.raises(ValueError, match=r"decompression bomb|at most 16777216"):
        decode_parts({"train": [Picture("it", REFUSED[name][0])]})


def test_a_bomb_warning_is_an_error_for_all_warning_filters():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="decompression bomb"):
            decode([Picture("it", bomb(12000, 12000))], (12000, 12000))


def test_a_truncated_picture_is_refused():
    data = encoded(np.random.default_rng(0).integers(0, 256, (64, 64, 3)), "JPEG")
    with pytest.raises(ValueError, match=r"cannot be read as .*truncated"):
        decode([Picture("it", data[: len(data) // 2])], (64, 64))


def test_a_bomb_is_not_decompressed(monkeypatch):
    unpacked = []
    real = PngImagePlugin.PngImageFile.load

    def counted(self):
        unpacked.append(self.size)
        return real(self)

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", counted)
    decode([Picture("good", GOOD)], (4, 3))
    assert unpacked  # the test is meaningful only if valid pictures are decompressed
    unpacked.clear()
    for name in ("another size", "bomb", "bomb that only warns", "bomb below Pillow's limit"):
        with pytest.raises(ValueError, match="it "):
            decode([Picture("it", REFUSED[name][0])], (4, 3))
    assert not unpacked


def test_too_many_pictures_are_refused_before_memory_is_allocated():
    with pytest.raises(
        ValueError, match="60 images of 20000x20000 pixels take 72000000000 bytes but at most 8589934592"
    ):
        decode([Picture("it", GOOD)] * 60, (20000, 20000))


def test_files_are_closed(tmp_path):
    paths = [tmp_path / str(i) for i in range(5)]
    for path in paths:
        path.write_bytes(flat(RED))
    paths[-1].write_bytes(flat(RED, (9, 9)))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(ValueError, match="9x9"):
        decode(of_files(paths), (4, 3))
    assert before is None or len(os.listdir("/proc/self/fd")) == before


def test_warning_filters_are_restored():
    before = list(warnings.filters)
    with pytest.raises(ValueError, match="another format"):
        decode([Picture("it", b"")], (4, 3))
    assert warnings.filters == before
    assert images.Image.MAX_IMAGE_PIXELS


def test_a_huge_file_is_not_read(tmp_path):
    with (tmp_path / "it.ppm").open("wb") as file:
        file.write(b"P3 4 3 255 #")  # an endless comment, which would be read completely before the first pixel
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"it\.ppm has 1099511627776 bytes but at most 134217728 are read"):
        decode(of_files([tmp_path / "it.ppm"]), (4, 3))


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (37, 37), (8, 300)])
@pytest.mark.parametrize("fit", [(16, 16), (20, 16), (32, 24)])
def test_pictures_of_any_size_are_resized_and_cropped(size, fit):
    scale, cut = fit
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    smooth = Image.fromarray(pixels).resize((3, 3)).resize(size, Image.Resampling.BICUBIC)
    (found,) = decode_parts({"it": [Picture("it", encoded(np.asarray(smooth)))]}, fit).values()
    whole = [round(side * scale / min(size)) for side in size]
    left, top = ((side - cut) / 2 for side in whole)
    resized = np.asarray(smooth.resize(whole, Image.Resampling.BILINEAR), np.float64)
    middle = resized[int(top) : int(top) + cut, int(left) : int(left) + cut].transpose(2, 0, 1)
    assert found.shape == (1, 3, cut, cut)
    inner = (..., slice(2, -2), slice(2, -2))  # at its edge, the crop is interpolated without the pixels outside
    assert np.abs(found[0].numpy()[inner] - middle[inner]).mean() < 12
    if scale == cut and size == (37, 37):  # nothing is cropped: the same as resizing the whole image
        assert np.array_equal(found[0].numpy(), middle)


def test_resizing_a_thin_picture_takes_little_memory():
    thin = Picture(
        "it", encoded(np.zeros((200_000, 1), np.uint8))
    )  # resized to a width of 224 it would have 10 billion pixels
    (found,) = decode_parts({"it": [thin]}, (224, 224)).values()
    assert found.shape == (1, 1, 224, 224)
