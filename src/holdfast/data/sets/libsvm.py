"""LIBSVM text: PATH for training and PATH.t for test, one 'label index:value ...' per line (Chang and Lin 2011)."""

from pathlib import Path

import numpy as np
import torch

from holdfast.data.readers.svm_text import read, scaled
from holdfast.data.split import DataSet, data_set

TAKES = "PATH"


def load(folder: Path | None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load two files, with each feature scaled to [0, 1] by its range in the training file.

    Labels are numbered in ascending order. Test values outside the training range are clipped to [0, 1], the box of
    threat models; the code of ARML (Wang et al. 2020) does not clip them. Validation samples come from the training
    file and are included in the ranges. ``verify`` is unused.
    """
    train_path, test_path = _paths(folder)
    train, test = read(train_path), read(test_path)
    width = max(train.width, test.width)
    tables = scaled(train.dense(width), train.dense(width), test.dense(width), path=train_path)
    classes = np.unique(train.y)
    parts = {
        part: (torch.from_numpy(x.clip(0, 1).astype(np.float32)), torch.from_numpy(text.encoded(classes)))
        for part, x, text in zip(("train", "test"), tables, (train, test), strict=True)
    }
    names = [f"{label:.0f}" for label in classes]
    return data_set(f"libsvm:{train_path.name}", parts, names, valid=valid, seed=seed)


def _paths(folder: Path | None) -> tuple[Path, Path]:
    train, test = Path(folder or "PATH"), Path(f"{folder or 'PATH'}.t")
    if not (train.is_file() and test.is_file()):
        raise FileNotFoundError(
            f"libsvm needs the files {train} and {test}, as text; download a data set with its .t file from the LIBSVM "
            "data page of Chang and Lin, unpack both with bunzip2 and name them libsvm:PATH"
        )
    return train, test
