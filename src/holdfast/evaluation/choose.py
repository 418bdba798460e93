"""What attacks compute with, chosen once by timing and stored with the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from holdfast.crafting import Mode, using
from holdfast.crafting.arithmetic import Arithmetic, arithmetic, chosen
from holdfast.crafting.microbatch import measured
from holdfast.records.choices import choice


def stored_arithmetic(name: Arithmetic, device: torch.device, folder: Path) -> Arithmetic:
    """The arithmetic of attacks on this device; where it is ``auto``, the choice is stored in the folder.

    ``auto`` depends on a timing trial, which may end differently in another process; a folder that is moved to a
    processor with other capabilities chooses anew.
    """
    if name != "auto":
        return name
    with arithmetic("auto"):
        depends_on = [str(device), torch.backends.cpu.get_cpu_capability()]
        found = choice(folder, "arithmetic", depends_on, lambda: str(chosen(device)).removeprefix("torch."))
    return cast(Arithmetic, found)


@contextmanager
def crafting_with(name: Arithmetic, mode: Mode, device: torch.device, folder: Path) -> Iterator[None]:
    """Attacks inside the context compute in this arithmetic and on this view of the model (:mod:`holdfast.crafting`).

    Where the arithmetic is ``auto``, the choice is stored in the folder of the model.
    """
    with arithmetic(stored_arithmetic(name, device, folder)), using(mode):
        yield


def stored_micro(model: nn.Module, digest: str, x: Tensor, y: Tensor, folder: Path) -> int:
    """The fastest number of samples per pass of an attack on this model, measured once and stored in the folder."""
    depends_on = [digest, str(x.device), str(chosen(x.device)), torch.get_num_threads()]
    return int(choice(folder, "micro", depends_on, lambda: measured(model, x, y)))
