"""Snapshots of weights and training state: safetensors files with facts and a checksum, written atomically."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from holdfast.records.files import write_bytes

Tensors = dict[str, Tensor]

_ENTRY = "holdfast"


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts to one file, atomically; equal content gives equal bytes."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    # a single entry: safetensors writes several in random order, and equal weights would give different files
    write_bytes(path, save(stored, metadata={_ENTRY: f"{_checksum(stored, text)} {text}"}))


def read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and facts of a file (no facts if another program wrote it); a damaged file is refused."""
    if not path.is_file():
        raise FileNotFoundError(f"there are no weights at {path}; train the model first or name another file")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _ENTRY not in header:
            return tensors, {}
        checksum, _, text = header[_ENTRY].partition(" ")
        if checksum != _checksum(tensors, text):
            raise ValueError("its content does not match its checksum")
        return tensors, json.loads(text)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and run again") from None


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    return sha256(f"{digest(tensors)} {text}".encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of tensors."""
    total = sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model; weights of another architecture are refused."""
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit this model ({str(error).splitlines()[-1].strip()})") from None
