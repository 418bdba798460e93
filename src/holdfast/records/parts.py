"""The cache of finished parts: a part that an earlier call computed is read, not computed again.

The key of a part holds everything it depends on, the version of the code that computes it included: after an upgrade
parts are computed again. A part carries the versions it was made with.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.records.provenance import Maker, maker
from holdfast.records.stored import read_arrays, write_arrays

Part = Mapping[str, NDArray[Any]]

_SECONDS, _MADE = "seconds", "made"


@dataclass(frozen=True)
class Parts:
    """Parts under a folder, one .npz file each."""

    folder: Path

    def get(self, key: Any, code: str, needed: Collection[str], compute: Callable[[], Part]) -> Part:
        """The part of this key, computed by this version of the code; it holds at least the arrays ``needed``.

        The seconds that computing took and what made the part are stored with it.
        """
        name = sha256(json.dumps([code, key], sort_keys=True).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.npz"
        stored = read_arrays(path, {*needed, _SECONDS, _MADE})
        if stored is not None:
            return stored
        started = time.perf_counter()
        part = dict(compute())
        part[_SECONDS] = np.array(time.perf_counter() - started)
        part[_MADE] = np.array(json.dumps(maker()))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_arrays(path, part)
        return part


def made(part: Part) -> Maker:
    """What made a part."""
    found: Maker = json.loads(str(part[_MADE]))
    return found


def seconds(part: Part) -> float:
    """How long computing a part took."""
    return float(part[_SECONDS])
