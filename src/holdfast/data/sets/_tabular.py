"""Loading of the named tabular data sets: LIBSVM text, each feature scaled to [0, 1] on the training samples."""

from pathlib import Path

import numpy as np
import torch

from holdfast.data.readers.files import find_folder, missing, searched
from holdfast.data.readers.svm_text import Array, Labels, read, scaled
from holdfast.data.split import DataSet, Split, checked, split_train

_GET = "download them from the LIBSVM data page of Chang and Lin, unpack them with bunzip2, drop .scale from names"
_TEST_SHARE, _TEST_SEED = 0.2, 0  # fixed, so that results are comparable


def load_tabular(name: str, folder: Path | None, *, valid: float | int, seed: int, test: bool = True) -> DataSet:
    """Load a data set from <folder>/libsvm or <folder>; without a ``test`` file, a fixed fifth is the test set.

    As in the code of ARML (Wang et al. 2020), test samples outside the training range exceed [0, 1]. Validation samples
    come from the training file and are included in the ranges.
    """
    files = [name, f"{name}.t"] if test else [name]
    place = find_folder(["libsvm"], files, folder)
    if place is None:
        places = searched(["libsvm"], folder)
        raise FileNotFoundError(missing(name, f"the files {' and '.join(files)}, as text", places, _GET))
    texts = [read(place / file) for file in files]
    width = max(text.width for text in texts)
    x, known = [text.dense(width) for text in texts], np.unique(texts[0].y)
    y = [text.encoded(known) for text in texts]
    train, test_part = _two_files(name, x, y, place / name) if test else _one_file(name, x[0], y[0], place / name)
    kept, valid_part = split_train(train, valid, seed)
    return DataSet(name, kept, valid_part, test_part, tuple(f"{label:.0f}" for label in known))


def _two_files(name: str, x: list[Array], y: list[Labels], path: Path) -> tuple[Split, Split]:
    train, test_part = (torch.from_numpy(part.astype(np.float32)) for part in scaled(x[0], *x, path=path))
    classes = int(y[0].max()) + 1
    return (
        checked(train, torch.from_numpy(y[0]), classes=classes, part=f"{name} train"),
        checked(test_part, torch.from_numpy(y[1]), classes=classes, part=f"{name} test", bounded=False),
    )


def _one_file(name: str, x: Array, y: Labels, path: Path) -> tuple[Split, Split]:
    classes = int(y.max()) + 1
    raw = checked(torch.from_numpy(x), torch.from_numpy(y), classes=classes, part=name, bounded=False)
    parts = split_train(raw, _TEST_SHARE, _TEST_SEED)
    tables = scaled(parts[0].x.numpy(), *(part.x.numpy() for part in parts), path=path)
    train, test_part = (
        Split(torch.from_numpy(table.astype(np.float32)), part.y, part.index)
        for table, part in zip(tables, parts, strict=True)
    )
    return train, test_part
