"""The cache of finished parts: a part that an earlier call computed is read, not computed again.

The key of a part holds everything it depends on, including the version of the code that computes it, so that parts are
computed again after an upgrade. Each part stores the versions it was made with.
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

from holdfast.records.files import read_arrays, write_arrays
from holdfast.records.provenance import Maker, maker

Part = Mapping[str, NDArray[Any]]

_SECONDS, _MADE = "seconds", "made"


@dataclass(frozen=True)
class Parts:
    """Parts under a folder, one .npz file each."""

    folder: Path

    def get(self, key: Any, code: str, needed: Collection[str], compute: Callable[[], Part]) -> Part:
        """The part with this key and code version, computed unless it is stored with all arrays in ``needed``.

        The seconds that computing took and the versions that made the part are stored with it.
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
    """The versions that computed a part."""
    versions: Maker = json.loads(str(part[_MADE]))
    return versions


def seconds(part: Part) -> float:
    """The seconds that computing a part took."""
    return float(part[_SECONDS])
