"""Pickled batches as Python 2 wrote them, and malicious pickles, for the tests of their readers."""

import struct


def text(value):
    """A string as Python 2 pickled it."""
    raw = value.encode("latin-1") if isinstance(value, str) else value
    return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw


def array(values, module=b"numpy.core.multiarray", fortran=False):
    """A uint8 array as numpy and Python 2 pickled it."""
    shape = b"".join(b"M" + struct.pack("<H", side) for side in values.shape)
    raw = values.tobytes(order="F" if fortran else "C")
    made = b"c" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R"
    kind = (
        b"cnumpy\ndtype\n"
        + text("u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    return made + b"(K\x01" + b"(" + shape + b"t" + kind + (b"\x88" if fortran else b"\x89") + text(raw) + b"tb"


def python2(pixels, labels, module=b"numpy.core.multiarray", fortran=False):
    """The bytes of a batch as published, with protocol 2 of Python 2."""
    names = b"".join(text(f"image_{i}.png") for i in range(len(labels)))
    items = text("batch_label") + text("training batch 1 of 5")
    items += text("labels") + b"]q\x01(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items += text("data") + array(pixels, module, fortran)
    items += text("filenames") + b"](" + names + b"e"
    return b"\x80\x02}q\x00(" + items + b"u."


class Payload:
    """An object that is pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call
