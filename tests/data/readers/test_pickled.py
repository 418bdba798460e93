import contextlib
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.data.readers import pickled
from pickles import Payload, python2, text

PATH = Path("data_batch_1")
PIXELS = (np.arange(24) * 11 % 256).astype(np.uint8).reshape(4, 6)
LABELS = [3, 0, 9, 9]


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize("fortran", [False, True])
def test_published_batches_are_read_as_pickle_reads_them(module, fortran):
    data = python2(PIXELS, LABELS, module, fortran)
    found = pickled.read(data, PATH)
    assert found["data"].tolist() == PIXELS.tolist()
    assert found["labels"] == LABELS
    assert found["batch_label"] == "training batch 1 of 5"
    assert found["filenames"] == [f"image_{i}.png" for i in range(4)]
    if module == b"numpy._core.multiarray":  # the other name is a deprecated alias
        known = pickle.loads(data, encoding="latin1")
        assert known.keys() == found.keys()
        assert known["data"].tolist() == PIXELS.tolist()


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("key", [str, str.encode])
@pytest.mark.parametrize("order", ["C", "F"])
def test_batches_of_other_protocols_are_read(protocol, key, order):
    held = {key("data"): np.asarray(PIXELS, order=order), key("labels"): LABELS, key("batch_label"): b"again"}
    found = pickled.read(pickle.dumps(held, protocol), PATH)
    assert found["data"].tolist() == PIXELS.tolist()
    assert (found["labels"], found["batch_label"]) == (LABELS, b"again")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(held=st.dictionaries(st.text(max_size=4), plain, max_size=4), protocol=st.integers(3, 5))
def test_plain_values_are_read(held, protocol):
    assert pickled.read(pickle.dumps(held, protocol), PATH) == held


class Stateful:
    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return np.dtype, ("u1",), self.state


def payloads(sentinel):
    """Pickles that would create a file if any part of them were executed."""
    command = f"touch {sentinel}"
    shell = Payload(os.system, command)
    yield from (pickle.dumps({"data": shell}, protocol) for protocol in range(6))
    yield pickle.dumps({"data": Payload(eval, f"open({str(sentinel)!r}, 'w').close()")}, 4)
    yield pickle.dumps({"data": Payload(Path.touch, sentinel)}, 4)
    yield pickle.dumps(shell, 4)
    yield b"cos\nsystem\n(S'" + command.encode() + b"'\ntR."  # protocol 0
    yield b"(S'" + command.encode() + b"'\nios\nsystem\n."  # INST
    yield b"(cos\nsystem\nS'" + command.encode() + b"'\no."  # OBJ
    yield b"\x80\x02cos\nsystem\n" + text(command) + b"\x85\x81."  # NEWOBJ
    yield b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text(command) + b"\x85R."  # STACK_GLOBAL
    yield b"\x80\x02cnumpy.core.multiarray\nos.system\n" + text(command) + b"\x85R."  # a dotted name
    yield b"\x80\x04\x8c\x04os s\x8c\x06system\x93."  # a space in the name of a module
    yield b"\x80\x02\x82\x01" + text(command) + b"\x85R."  # EXT1
    yield python2(PIXELS, LABELS)[:-1] + b"0cos\nsystem\n" + text(command) + b"\x85R."  # after a valid batch


def test_nothing_in_a_pickle_is_executed(tmp_path):
    sentinel = tmp_path / "ran"
    for data in payloads(sentinel):
        with pytest.raises(
            ValueError, match=r"data_batch_1 cannot be read as a plain batch \(.*\); give the"
        ) as refusal:
            pickled.read(data, PATH)
        assert "\n" not in str(refusal.value)
        assert not sentinel.exists()


def test_pickle_itself_would_execute_the_payloads(tmp_path):
    # the test above is meaningful only if this passes
    sentinel = tmp_path / "ran"
    pickle.loads(next(payloads(sentinel)))
    assert sentinel.exists()


def bare(*instructions):
    return b"\x80\x04" + b"".join(instructions) + b"."


LAUGH = b")q\x00" + b"h\x00\x86q\x00" * 60  # nested pairs with 2**60 leaves
FROM_BUFFER = b"cnumpy._core.numeric\n_frombuffer\n("
UINT8 = b"cnumpy\ndtype\n" + text("u1") + b"\x85R"
REFUSED = {
    "nothing": (b"", "exhausted before seeing STOP"),
    "noise": (b"\x00\x01\x02", "unknown"),
    "no dict": (pickle.dumps([1]), "it holds a list, not a dict"),
    "cut in a string": (python2(PIXELS, LABELS)[:60], ""),
    "stops too early": (bare(b"}", b"}"), "it ends too early"),
    "empty": (bare(), "it ends too early"),
    "takes too much": (bare(b"\x86"), "its stack has too few values"),
    "no mark": (bare(b"}", b"u"), "its stack has too few values"),
    "memo missing": (bare(b"h\x07"), ""),
    "memo of nothing": (bare(b"q\x07"), ""),
    "other name": (bare(b"cbuiltins\neval\n"), "it asks for 'builtins.eval', but only plain numpy arrays are read"),
    "numpy scalar": (pickle.dumps({"labels": [np.int64(3)]}), "it asks for 'numpy.*scalar'"),
    "numpy load": (bare(b"cnumpy\nload\n"), "it asks for 'numpy.load'"),
    "name is no string": (bare(b"K\x01K\x02\x93"), "something else where a string is needed"),
    "calls a list": (bare(b"]", b"K\x01\x85", b"R"), "it calls what is not a constructor"),
    "calls without arguments": (bare(b"cnumpy\ndtype\n", b")", b"R"), "it calls what is not a constructor"),
    "arguments are no tuple": (bare(b"cnumpy\ndtype\n", b"]", b"R"), "it calls what is not a constructor"),
    "array of a subclass": (
        bare(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\ndtype\n", b"\x85R"),
        "that is not an array of bytes",
    ),
    "objects": (pickle.dumps({"data": np.array([None])}), "it makes a numpy dtype that is not an array of bytes"),
    "floats": (pickle.dumps({"data": np.zeros(3)}), "it makes a numpy dtype that is not"),
    "records": (pickle.dumps({"data": np.zeros(3, "u1,u1")}), "it makes a numpy dtype that is not"),
    "state of a list": (bare(b"]", b"}", b"b"), "it changes the state of what is not an array"),
    "state of a name": (bare(b"cnumpy\ndtype\n", b"}", b"b"), "it changes the state of what is not an array"),
    "too few bytes": (python2(PIXELS, LABELS).replace(b"M\x06", b"M\x07", 1), "should have 28 bytes but 24 are"),
    "bytes from a number": (
        bare(FROM_BUFFER, b"J\xff\xff\xff\x7f", UINT8, b"J\xff\xff\xff\x7f\x85", text("C"), b"tR"),
        "array without bytes or without a shape",
    ),
    "shape of lists": (
        bare(FROM_BUFFER, b"C\x01a", UINT8, b"]\x85", text("C"), b"tR"),
        "array without bytes or without a shape",
    ),
    "negative shape": (
        bare(FROM_BUFFER, b"C\x01a", UINT8, b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", text("C"), b"tR"),
        "array without bytes or without a shape",
    ),
    "append to a dict": (bare(b"}", b"K\x01a"), "it appends to what is not a list"),
    "set in a list": (bare(b"]", text("a"), b"K\x01s"), "what is not a dict with strings for keys"),
    "odd items": (bare(b"}(", text("a"), b"u"), ""),
    "a number for a key": (pickle.dumps({1: 2}), "what is not a dict with strings for keys"),
    "a list for a key": (bare(b"}", b"]", b"K\x01s"), "what is not a dict with strings for keys"),
    "a set": (pickle.dumps({"a": {1}}), "it uses the instruction EMPTY_SET"),
    "a float": (pickle.dumps({"a": 1.5}), "it uses the instruction BINFLOAT"),
    "out-of-band buffer": (b"\x80\x05\x97.", "it uses the instruction NEXT_BUFFER"),
    "persistent id": (bare(b"Nq\x00Q"), "it uses the instruction BINPERSID"),
    "promise of 16 EiB": (bare(b"\x8e" + b"\xff" * 7 + b"\x7f"), ""),
    "promise of a frame": (b"\x80\x04\x95" + b"\xff" * 8, "exhausted before seeing STOP"),
    "a new line": (bare(b"\x8c\x02a\nb" b"\x8c\x03c\nd"[:6], b"\x93"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_pickles_are_refused_in_one_sentence(name):
    data, message = REFUSED[name]
    with pytest.raises(
        ValueError, match=rf"^data_batch_1 cannot be read as a plain batch \(.*{message}.*\); give"
    ) as refusal:
        pickled.read(data, PATH)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_memory_does_not_depend_on_numbers_in_the_file():
    bombs = [
        bare(b"}r\xff\xff\xff\xff"),  # a memo index of 4 billion
        bare(b"}", text("a"), LAUGH, b"s"),
        REFUSED["bytes from a number"][0],
        REFUSED["promise of 16 EiB"][0],
    ]
    tracemalloc.start()
    for bomb in bombs:
        with contextlib.suppress(ValueError):
            pickled.read(bomb, PATH)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_an_exponentially_nested_shape_is_not_expanded():
    with pytest.raises(ValueError, match="array without bytes or without a shape"):
        pickled.read(bare(FROM_BUFFER, b"C\x01a", UINT8, LAUGH, text("C"), b"tR"), PATH)


def test_too_many_instructions_are_refused(monkeypatch):
    monkeypatch.setattr(pickled, "_INSTRUCTIONS", 100)
    with pytest.raises(ValueError, match="it has more than 100 instructions"):
        pickled.read(bare(b"N" * 200), PATH)


@given(where=st.floats(0, 1), change=st.integers(1, 255), cut=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_a_damaged_batch_gives_plain_values_or_a_value_error(where, change, cut):
    data = bytearray(python2(PIXELS, LABELS))
    place = int(where * (len(data) - 1))
    data[place] ^= change
    with contextlib.suppress(ValueError):
        for value in pickled.read(bytes(data[:place] if cut else data), PATH).values():
            assert isinstance(value, str | bytes | list | np.ndarray | int | dict | tuple | None)


def test_arrays_that_share_a_string_do_not_fill_the_memory():
    many, size = 2000, 60_000  # a file of 150 KB that would become 120 MB
    one = b"h\x01" + b"h\x02" + b"J" + struct.pack("<i", size) + b"\x85" + text("C")
    shared = text("x" * size) + b"q\x01" + UINT8 + b"q\x02"
    arrays = (FROM_BUFFER + one + b"tR") * many
    bomb = bare(b"}", text("data"), b"(", shared, arrays, b"ts")
    assert len(bomb) < 250_000
    tracemalloc.start()
    with pytest.raises(ValueError, match="its arrays hold more bytes than the file"):
        pickled.read(bomb, PATH)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
