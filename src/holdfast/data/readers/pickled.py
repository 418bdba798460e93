"""Safe reading of pickled batches: a stack machine for lists, dicts, strings, numbers and uint8 arrays.

pickle.load calls any function that a file names. This reader calls none of them: it interprets the names of numpy's
array constructors, refuses every other name, and creates arrays itself from the bytes in the file. No allocation is
sized by a number in the file, so memory is proportional to the size of the file.
"""

from math import prod
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_INSTRUCTIONS = 1_000_000  # a batch of CIFAR-10 has about 40,000
_IGNORED = {"PROTO", "FRAME"}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BYTEARRAY8", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_FROM_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
_DTYPE, _NDARRAY = "numpy dtype", "numpy ndarray"
_NAMES = {*_RECONSTRUCT, *_FROM_BUFFER, _DTYPE, _NDARRAY}
_MARK = object()


class _Name(str):
    """A global name in the file, which is never looked up."""

    __slots__ = ()


class _UInt8:
    """The data type uint8, the only one that is allowed."""


class _Array:
    """An array whose values may be set later by a BUILD instruction."""

    def __init__(self, values: Bytes | None = None) -> None:
        self.values = values


def read(data: bytes, path: Path) -> dict[str, Any]:
    """Read a pickled dict from ``data``, the content of ``path``; arrays are returned as read-only numpy arrays."""
    try:
        found = _run(data)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not a dict")
    except Exception as error:  # a malicious file can raise nearly any exception in pickletools
        reason = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path} cannot be read as a plain batch ({reason}); give the published file") from error
    return {_text(key): value.values if isinstance(value, _Array) else value for key, value in found.items()}


def _run(data: bytes) -> object:
    machine = _Machine(len(data))
    for count, (instruction, argument, _) in enumerate(genops(data)):
        if count > _INSTRUCTIONS:
            raise ValueError(f"it has more than {_INSTRUCTIONS} instructions")
        machine.step(instruction.name, argument)
    if len(machine.stack) != 1:
        raise ValueError("it ends too early")
    return machine.stack[0]


class _Machine:
    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = size  # bytes that arrays may still take: many arrays could copy the same string

    def step(self, name: str, argument: Any) -> None:
        """Execute one instruction."""
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self.stack.append(tuple(self._pop(_TUPLES[name])))
        elif name not in _IGNORED:
            self._compound(name, argument)

    def _compound(self, name: str, argument: Any) -> None:
        match name:
            case "MARK":
                self.stack.append(_MARK)
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_DICT":
                self.stack.append({})
            case "TUPLE":
                self.stack.append(tuple(self._pop_to_mark()))
            case "APPEND" | "APPENDS":
                self._append(self._pop(1) if name == "APPEND" else self._pop_to_mark())
            case "SETITEM" | "SETITEMS":
                self._set(self._pop(2) if name == "SETITEM" else self._pop_to_mark())
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case "GLOBAL":
                self.stack.append(_check_name(argument))
            case "STACK_GLOBAL":
                self.stack.append(_check_name(" ".join(map(_text, self._pop(2)))))
            case "REDUCE":
                self._count(value := _construct(*self._pop(2)))
                self.stack.append(value)
            case "BUILD":
                _fill(self.stack[-2], self._pop(1)[0])
                self._count(self.stack[-1])
            case "STOP":
                pass
            case _:
                raise ValueError(f"it uses the instruction {name}, which plain batches do not need")

    def _count(self, made: object) -> None:
        self.left -= made.values.nbytes if isinstance(made, _Array) and made.values is not None else 0
        if self.left < 0:
            raise ValueError("its arrays hold more bytes than the file")

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("its stack has too few values")
        first = len(self.stack) - count
        taken, self.stack[first:] = self.stack[first:], []
        return taken

    def _pop_to_mark(self) -> list[Any]:
        count = next((depth for depth, value in enumerate(reversed(self.stack)) if value is _MARK), len(self.stack))
        return self._pop(count + 1)[1:]

    def _append(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to what is not a list")
        self.stack[-1].extend(values)

    def _set(self, pairs: list[Any]) -> None:
        keys = pairs[::2]
        if type(self.stack[-1]) is not dict or not all(isinstance(key, str | bytes) for key in keys):
            raise ValueError("it sets what is not a dict with strings for keys")
        self.stack[-1].update(zip(keys, pairs[1::2], strict=True))


def _check_name(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(f"it asks for {name.replace(' ', '.', 1)[:80]!r}, but only plain numpy arrays are read")
    return _Name(name)


def _construct(function: Any, arguments: Any) -> _Array | _UInt8:
    """Return what the numpy constructor with this name would create; raise ValueError unless that is a uint8 array."""
    if not isinstance(function, _Name) or not isinstance(arguments, tuple) or not arguments:
        raise ValueError("it calls what is not a constructor of arrays")
    if function in _RECONSTRUCT and arguments[0] == _NDARRAY:
        return _Array()
    if function == _DTYPE and _text(arguments[0]) in ("u1", "|u1", "uint8"):
        return _UInt8()
    if function in _FROM_BUFFER:
        raw, kind, shape, order = arguments[:4]
        return _Array(_values(shape, kind, order == "F", raw))
    raise ValueError(f"it makes a {function} that is not an array of bytes")


def _fill(subject: Any, state: Any) -> None:
    if isinstance(subject, _Array) and subject.values is None:
        shape, kind, fortran, raw = state[-4:]
        subject.values = _values(shape, kind, fortran, raw)
    elif not isinstance(subject, _UInt8):  # the state of a data type is its byte order, which uint8 does not have
        raise ValueError("it changes the state of what is not an array")


def _values(shape: Any, kind: Any, fortran: Any, raw: Any) -> Bytes:
    if not isinstance(kind, _UInt8):
        raise ValueError("it holds an array of another type than uint8")
    raw = raw.encode("latin-1") if isinstance(raw, str) else raw
    if not isinstance(raw, bytes | bytearray) or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError("it holds an array without bytes or without a shape")
    if prod(shape) != len(raw):
        raise ValueError(f"its array should have {prod(shape)} bytes but {len(raw)} are given")
    flat: Bytes = np.frombuffer(raw, dtype=np.uint8)
    return flat.reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise ValueError("it has something else where a string is needed")
    return value.decode("latin-1") if isinstance(value, bytes) else value
