"""Snapshots of training: one safetensors file each, written atomically, checked when read, nothing unpickled."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from holdfast.records.atomic import write_bytes

Tensors = dict[str, Tensor]

_NOTE = "holdfast"


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Store tensors and JSON facts as one file that is either whole or not there; equal content is equal bytes."""
    owned = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    # one entry: safetensors writes several in random order, and the same weights would not be the same file
    write_bytes(path, save(owned, metadata={_NOTE: f"{_seal(owned, text)} {text}"}))


def read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and facts of a file (none if another program wrote it); a damaged one is refused."""
    if not path.is_file():
        raise FileNotFoundError(f"there are no weights at {path}; train the model first or name another file")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _NOTE not in header:
            return tensors, {}
        seal, _, text = header[_NOTE].partition(" ")
        if seal != _seal(tensors, text):
            raise ValueError("its content does not match its checksum")
        return tensors, json.loads(text)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and run again") from None


def _seal(tensors: Mapping[str, Tensor], text: str) -> str:
    return sha256(f"{digest(tensors)} {text}".encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors."""
    total = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a model; a file of another architecture is refused."""
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit this model ({str(error).splitlines()[-1].strip()})") from None
