import gzip
import struct
import tracemalloc
from math import prod

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.data.readers import idx as reader
from holdfast.data.readers.idx import read


def idx(shape, body, kind=8):
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + bytes(body)


def stored(folder, content, name="file"):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_read_agrees_with_struct(tmp_path, pack, shape, seed):
    body = [(seed + 37 * i) % 256 for i in range(prod(shape))]
    found = read(stored(tmp_path, pack(idx(shape, body))), len(shape))
    assert found.dtype == torch.uint8
    assert list(found.shape) == shape
    assert found.flatten().tolist() == body


def test_compression_is_detected_by_content(tmp_path):
    plain = stored(tmp_path, idx((2,), b"\x03\x04"), "labels.gz")
    packed = stored(tmp_path, gzip.compress(idx((2,), b"\x03\x04")), "labels")
    assert read(plain, 1).tolist() == read(packed, 1).tolist() == [3, 4]


def test_an_empty_set_is_read_as_empty(tmp_path):
    assert read(stored(tmp_path, idx((0, 28, 28), b"")), 3).shape == (0, 28, 28)


WHOLE = idx((4, 3), range(12))
PACKED = gzip.compress(WHOLE)
DAMAGED = {
    "nothing": (b"", "starts with nothing but"),
    "wrong magic": (b"\x00\x00\x08\x01" + WHOLE[4:], "starts with 00000801 but .* starts with 00000802"),
    "other number type": (idx((4, 3), range(12), kind=13), "starts with 00000d02 but"),
    "a picture": (b"\x89PNG\r\n", "starts with 89504e47 but"),
    "cut in the magic": (WHOLE[:3], "starts with 000008 but"),
    "cut in the header": (WHOLE[:9], "ends inside its header of 12 bytes"),
    "cut in the data": (WHOLE[:-1], "promises 12 bytes of data but holds only 11"),
    "too long": (WHOLE + b"\x00", "promises 12 bytes of data but holds more"),
    "cut gzip": (PACKED[:-12], "is damaged .*; download it again"),
    "gzip without its sum": (PACKED[:-8], "is damaged .*; download it again"),
    "gzip of another sum": (PACKED[:-8] + b"\x00" * 4 + PACKED[-4:], "is damaged .*; download it again"),
    "gzip of noise": (PACKED[:10] + b"\xff" * 20, "is damaged .*; download it again"),
    "only a gzip header": (PACKED[:2], "is damaged .*; download it again"),
    "gzip, cut inside": (gzip.compress(WHOLE[:-1]), "promises 12 bytes of data but holds only 11"),
    "gzip, too long": (gzip.compress(WHOLE + bytes(100)), "promises 12 bytes of data but holds more"),
    "empty promise": (idx((2**32 - 1, 2**32 - 1), b""), "promises 18446744065119617025 bytes but at most 1073741824"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_invalid_files_are_refused_in_one_sentence(tmp_path, name):
    content, message = DAMAGED[name]
    path = stored(tmp_path, content)
    with pytest.raises(ValueError, match=message) as refusal:
        read(path, 2)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


def test_a_bomb_is_not_decompressed(tmp_path, monkeypatch):
    asked = []
    real = gzip.GzipFile.read

    def counted(self, size=-1):
        asked.append(size)
        return real(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    bomb = gzip.compress(idx((10,), b"") + bytes(5_000_000))
    with pytest.raises(ValueError, match="promises 10 bytes of data but holds more"):
        read(stored(tmp_path, bomb), 1)
    assert asked == [8, 11]


def test_files_beyond_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_LARGEST", 11)
    with pytest.raises(ValueError, match="promises 12 bytes but at most 11 are read"):
        read(stored(tmp_path, PACKED), 2)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_memory_is_not_allocated_from_the_header(tmp_path, pack):
    path = stored(tmp_path, pack(idx((1 << 20, 1 << 10), b"few")))
    tracemalloc.start()
    with pytest.raises(ValueError, match="promises 1073741824 bytes of data but holds only 3"):
        read(path, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_too_many_empty_samples_are_refused(tmp_path):
    with pytest.raises(ValueError, match="promises 4294967295 samples but at most 16777216 are read"):
        read(stored(tmp_path, idx((2**32 - 1, 0), b"")), 2)
