"""The arithmetic and the micro-batch size of attacks: chosen once by timing, then stored with the run."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from holdfast.crafting import Mode, processor, using
from holdfast.crafting.arithmetic import Arithmetic, arithmetic, chosen
from holdfast.crafting.microbatch import measured
from holdfast.records.files import read_json, write_text


def stored_arithmetic(name: Arithmetic, device: torch.device, folder: Path) -> Arithmetic:
    """The arithmetic of attacks on this device; a choice by ``auto`` is stored in the folder and reused.

    ``auto`` depends on a timing trial, whose outcome may differ between processes. The choice is made again when the
    folder moves to a processor with other capabilities.
    """
    if name != "auto":
        return name
    with arithmetic("auto"):
        depends_on = [str(device), processor.facts()]
        selected = _choice(folder, "arithmetic", depends_on, lambda: str(chosen(device)).removeprefix("torch."))
    return cast(Arithmetic, selected)


@contextmanager
def crafting_with(name: Arithmetic, mode: Mode, device: torch.device, folder: Path) -> Iterator[None]:
    """Context in which attacks use this arithmetic and this crafting mode (see :mod:`holdfast.crafting`).

    A choice by ``auto`` is stored in the folder of the model.
    """
    with arithmetic(stored_arithmetic(name, device, folder)), using(mode):
        yield


def stored_micro(model: nn.Module, digest: str, x: Tensor, y: Tensor, total: int, folder: Path) -> int:
    """The micro-batch size at which attacks on this model are fastest, measured once and stored in the folder.

    It is measured on the samples ``x``, the first of ``total``.
    """
    depends_on = [digest, str(x.device), str(chosen(x.device)), torch.get_num_threads()]
    return int(_choice(folder, "micro", depends_on, lambda: measured(model, x, y, total)))


def _choice(folder: Path, name: str, depends_on: list[Any], choose: Callable[[], Any]) -> Any:
    """The stored choice called ``name``; without one that was made for ``depends_on``, ``choose`` makes and stores one.

    ``depends_on`` and the choice are JSON values.
    """
    path = folder / "choices.json"
    try:
        stored = read_json(path)
    except (FileNotFoundError, ValueError):
        stored = {}
    if stored.get(name, {}).get("depends_on") != depends_on:
        stored[name] = {"depends_on": depends_on, "chosen": choose()}
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1) + "\n")
    return stored[name]["chosen"]
