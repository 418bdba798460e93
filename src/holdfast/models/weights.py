"""Reading checkpoints without executing code, and loading their weights into a model by name and shape."""

import re
import warnings
import zipfile
from collections.abc import Collection, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from pickletools import genops
from typing import IO, TypeGuard

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from holdfast.models.classifier import Normalize
from holdfast.settings import path_of

_CONTAINERS = ("state_dict", "model_state_dict", "model", "net")
_ALLOCATING = ("bytearray", "encode")  # torch allows these calls: one allocates memory, the other copies
_PICKLES = 5  # at the start of a file of torch before 1.6: magic number, version, system, weights, keys
_WRAPPERS = ("module.", "model.", "_orig_mod.")  # DataParallel, a module that holds the network, torch.compile


def read_state(path: str | Path) -> dict[str, Tensor]:
    """Read the named tensors of a .safetensors file or of a torch checkpoint (with ``weights_only``).

    The tensors are the top-level entries or those under ``state_dict``, ``model_state_dict``, ``model`` or ``net``. The
    prefixes ``module.``, ``model.`` and ``_orig_mod.`` are removed if all names have them.
    """
    path = path_of(path, "path")
    if not path.is_file():
        raise FileNotFoundError(f"there are no weights at {path}; name a .safetensors file or a torch checkpoint")
    found = _unpacked(_read(path))
    state = {name: value.detach() for name, value in found.items() if isinstance(name, str) and _is_complete(value)}
    if odd := [str(name) for name in found if name not in state]:
        raise ValueError(f"{path} holds {some(odd)} beside named tensors; have model.state_dict() saved alone")
    if not state:
        raise ValueError(f"{path} holds no named tensors; have model.state_dict() saved in it")
    return bare_names(state)


def load_into(module: nn.Module, state: Mapping[str, Tensor], rename: Mapping[str, str | None] | None = None) -> None:
    """Load weights into a model; if a name or shape does not match, raise ValueError and change nothing.

    ``rename`` maps prefixes of the given names, up to a dot, to those of the model: ``{"fc": "head", "features": ""}``;
    tensors whose prefix maps to None are dropped. Buffers that are not learned may be missing: the constants of
    :class:`Normalize` and the ``num_batches_tracked`` of batch norm.
    """
    fitting = matched(module, state, rename)
    module.load_state_dict(module.state_dict() | fitting)


def matched(
    module: nn.Module, state: Mapping[str, Tensor], rename: Mapping[str, str | None] | None = None
) -> dict[str, Tensor]:
    """Return the weights under the names of the model; raise ValueError if a name or shape does not match."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"the model is a {type(module).__name__} but must be a torch.nn.Module")
    _check_state(state)
    expected, given = module.state_dict(), _renamed(state, rename or {})
    optional = _optional(module, expected)
    ours, theirs = _by_bare_name(expected, optional), _by_bare_name(given, optional)
    missing = [name for name in ours if name not in theirs and ours[name] not in optional]
    unexpected = [name for name in theirs if name not in ours]
    both = {ours[name]: given[theirs[name]] for name in ours if name in theirs}
    sizes = {name: (tuple(new.shape), tuple(expected[name].shape)) for name, new in both.items()}
    shapes = [f"{name} {given} for {wanted}" for name, (given, wanted) in sizes.items() if given != wanted]
    wrong = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    if any(wrong.values()):
        what = "; ".join(f"{word}: {some(names)}" for word, names in wrong.items() if names)
        raise ValueError(f"the weights do not fit the model ({what}), so rename them or build the model they belong to")
    return both


def _check_state(state: object) -> None:
    """Refuse what is no mapping from names to tensors."""
    odd = (
        next((value for value in state.values() if not isinstance(value, Tensor)), None)
        if isinstance(state, Mapping)
        else state
    )
    if odd is not None:
        raise ValueError(
            f"the weights hold a {type(odd).__name__} where named tensors are needed; give read_state(path)"
        )


def bare_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefixes that wrappers such as DataParallel add to all names."""
    _check_state(state)
    return {bare: state[name] for bare, name in _by_bare_name(state, ()).items()}


def some(names: list[str]) -> str:
    """Format the first three names and the number of others for a message."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _read(path: Path) -> object:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        _refuse_bombs(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about archives that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a malicious file can raise nearly any exception in a parser
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = f"it asks for {named[1]}, more than weights" if named else "neither torch nor safetensors writes such"
        raise ValueError(
            f"{path} was refused and nothing in it was run because {why}; "
            "get a .safetensors file or have model.state_dict() saved alone"
        ) from None


def _refuse_bombs(path: Path) -> None:
    """Raise ValueError for small files that would fill the memory: compressed archives, pickles that copy objects."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # the test that torch uses
            file.seek(0)
            for _ in range(_PICKLES):
                _refuse_allocations(file)
            return
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        file.seek(-22, 2)
        if file.read(4) != b"PK\x05\x06":  # otherwise torch might read another directory than zipfile
            raise ValueError("something follows the archive")
        if sum(member.file_size for member in members) > path.stat().st_size:  # torch does not compress
            raise ValueError("the archive is larger inside than outside")
        for member in members:
            if member.filename.lower().endswith(".pkl"):  # torch ignores the case of names
                _refuse_allocations(BytesIO(archive.read(member)))


def _refuse_allocations(stream: IO[bytes]) -> None:
    """Raise ValueError for a pickle that allocates memory, or that calls or builds repeatedly from its memo."""
    before = ["", "", ""]
    for instruction, argument, _ in genops(stream):
        name = instruction.name
        if name == "GLOBAL" and str(argument).rpartition(" ")[2] in _ALLOCATING:
            raise ValueError(f"GLOBAL {str(argument).replace(' ', '.')}")
        from_memo = before[-1].endswith("GET") or (before[-1] == "TUPLE1" and before[-2].endswith("GET"))
        from_memo |= before[0] == "MARK" and before[1].endswith("GET") and before[2] == "TUPLE"
        if name in ("REDUCE", "NEWOBJ") and (from_memo or "TUPLE" not in before[-1]):
            raise ValueError("a call with arguments from the memo")
        if name == "BUILD" and from_memo:
            raise ValueError("a state from the memo")
        if "PUT" not in name and name != "MEMOIZE":
            before = [*before[1:], name]


def _unpacked(found: object) -> Mapping[object, object]:
    for _ in _CONTAINERS:  # bounded: a malicious file may contain itself
        inner = (found[key] for key in _CONTAINERS if key in found) if isinstance(found, Mapping) else ()
        found = next((item for item in inner if isinstance(item, Mapping)), found)
    return found if isinstance(found, Mapping) else {}


def _is_complete(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a dense CPU tensor that is no larger than its storage."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
        return False
    return value.device.type == "cpu" and value.nbytes <= value.untyped_storage().nbytes()


def _by_bare_name(names: Iterable[str], optional: Collection[str]) -> dict[str, str]:
    """Map names without wrapper prefixes to the full names; optional names need not have the prefix."""
    names, prefix = list(names), ""
    needed = [name for name in names if name not in optional]
    while more := [w for w in _WRAPPERS if needed and all(name.startswith(prefix + w) for name in needed)]:
        prefix += more[0]
    return {name.removeprefix(prefix): name for name in names}


def _renamed(state: Mapping[str, Tensor], rename: Mapping[str, str | None]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        old = max((old for old in rename if not old or f"{name}.".startswith(f"{old}.")), key=len, default=None)
        new = name if old is None else _joined(rename[old], name[len(old) :].removeprefix("."))
        if new in renamed:
            raise ValueError(f"rename gives two tensors the name {new!r}; map one of them to None or elsewhere")
        if new is not None:
            renamed[new] = tensor
    return renamed


def _joined(start: str | None, rest: str) -> str | None:
    return None if start is None else ".".join(part for part in (start, rest) if part)


def _optional(module: nn.Module, names: Iterable[str]) -> set[str]:
    constants = [name for name, part in module.named_modules() if isinstance(part, Normalize)]
    fixed = {f"{name}.{key}".removeprefix(".") for name in constants for key in ("mean", "std")}
    return fixed | {name for name in names if name.endswith("num_batches_tracked")}
