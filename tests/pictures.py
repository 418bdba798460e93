"""Small image files, good and hostile, for the tests of the sets that decode them."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encoded(pixels, format="PNG", mode=None):
    """The bytes of an image file of these pixels."""
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    stream = io.BytesIO()
    (image.convert(mode) if mode else image).save(stream, format=format)
    return stream.getvalue()


def flat(color, size=(4, 3), format="PNG", mode=None):
    """An image of one color; ``size`` is (width, height)."""
    shape = (*size[::-1], len(color)) if isinstance(color, tuple) else size[::-1]
    return encoded(np.broadcast_to(np.array(color), shape), format, mode)


def bomb(width, height):
    """A PNG of a few bytes whose header promises this many pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )
