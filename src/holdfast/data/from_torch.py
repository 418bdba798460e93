"""Data sets from torch Datasets and DataLoaders, read once and kept in memory."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from holdfast.data.split import DataSet, EvaluationSet, checked, data_set

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def from_dataset(
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    classes: Sequence[str] | None = None,
    valid: float | int = 0.1,
    seed: int = 0,
) -> DataSet:
    """Create a data set from two torch Datasets of pairs (x, y).

    x is a tensor or array, floating point in [0, 1] or uint8, or a PIL image. Each sample is read once: random
    augmentation in your Dataset is applied only once, and so is normalization, which belongs inside the model.
    ``classes`` are by default ``train.classes`` if there are any, else numbers.
    """
    parts = {part: _stack(part, _samples(rows, part)) for part, rows in (("train", train), ("test", test))}
    return data_set("own", parts, _names(classes, train, parts["train"][1]), valid=valid, seed=seed)


def from_loader(
    train: DataLoader[Any],
    test: DataLoader[Any],
    *,
    classes: Sequence[str] | None = None,
    valid: float | int = 0.1,
    seed: int = 0,
) -> DataSet:
    """Create a data set from two DataLoaders of batches (x, y) that neither shuffle nor drop samples.

    As with :func:`from_dataset`, each sample is read once, so random augmentation is applied only once.
    """
    for part, loader in (("train", train), ("test", test)):
        if not isinstance(loader, DataLoader):
            raise ValueError(
                f"the {part} loader is a {type(loader).__name__} but must be a DataLoader of batches (x, y)"
            )
    parts = {part: _stack(part, _unbatched(part, loader)) for part, loader in (("train", train), ("test", test))}
    return data_set("own", parts, _names(classes, train.dataset, parts["train"][1]), valid=valid, seed=seed)


def evaluation_set(data: Any, y: Any = None, part: str = "given") -> EvaluationSet:
    """Create a test set from samples x with labels y, or from a Dataset or DataLoader of pairs (x, y).

    x is a tensor or array, floating point or uint8; the box that it must lie in is that of the threat.
    """
    if isinstance(data, Tensor | np.ndarray):
        if y is None:
            raise ValueError(
                f"x has shape {tuple(data.shape)} but there are no labels; give y with one for each sample"
            )
        x, labels = _tensor(data, "the data"), _labels(y)
    elif y is not None:
        raise ValueError(f"x is a {type(data).__name__}; give a tensor or an array of samples, each of the same shape")
    elif isinstance(data, DataLoader):
        x, labels = _stack(part, _unbatched(part, data))
    elif hasattr(data, "__getitem__") or isinstance(data, Dataset):
        x, labels = _stack(part, _samples(data, part))
    else:
        raise ValueError(f"the data is a {type(data).__name__}; give x and y, a Dataset or a DataLoader of such pairs")
    classes = getattr(getattr(data, "dataset", data), "classes", None)
    names = None if classes is None else tuple(map(str, classes))
    known = None if names is None else len(names)
    return EvaluationSet("own", checked(x, labels, classes=known, part=part, bounded=False), names)


def in_order(data: Any) -> Any:
    """A loader of all its samples in their order, for one that shuffles them; other data as they are."""
    shuffles = isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler)
    if not shuffles or data.sampler.replacement or data.sampler.num_samples != len(data.dataset):
        return data
    return DataLoader(data.dataset, batch_size=data.batch_size, collate_fn=data.collate_fn)


def _labels(y: Any) -> Tensor:
    labels = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
    if labels.dtype.kind not in "biuf":
        raise ValueError(f"y has type {labels.dtype}; give class numbers from 0")
    return torch.from_numpy(labels.astype(np.int64) if labels.dtype.kind in "iu" else labels)


def _names(classes: Sequence[str] | None, train: Dataset[Any], y: Tensor) -> list[str]:
    count = len(set(y.tolist()))  # a gap in the labels makes the largest label out of range
    return [str(name) for name in classes or getattr(train, "classes", None) or range(count)]


def _samples(rows: Any, part: str) -> Iterator[Any]:
    if not (hasattr(rows, "__getitem__") or hasattr(rows, "__iter__")) or isinstance(rows, str):
        raise ValueError(f"the {part} set is a {type(rows).__name__} but must be a Dataset of pairs (x, y)")
    # by position if possible: plain iteration would end silently at any IndexError
    return (rows[i] for i in range(len(rows))) if hasattr(rows, "__len__") else iter(rows)


def _unbatched(part: str, loader: DataLoader[Any]) -> Iterator[Any]:
    if isinstance(loader.sampler, _RANDOM) or loader.drop_last:
        raise ValueError(
            f"the {part} loader shuffles or drops its last batch, but a sample is known by its position; "
            "give a loader with shuffle=False and drop_last=False"
        )
    for number, batch in enumerate(loader):
        x, y = _pair(batch, f"batch {number} of the {part} loader")
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or len(x) != len(y):
            raise ValueError(
                f"batch {number} of the {part} loader is not a tensor x with a label for each row; collate it so"
            )
        yield from zip(x, y, strict=True)


def _pair(sample: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise ValueError(
            f"{where} is a {type(sample).__name__} but a pair (x, y) is needed; wrap it so that it gives pairs"
        )
    return sample[0], sample[1]


def _stack(part: str, samples: Iterator[Any]) -> tuple[Tensor, Tensor]:
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    for i, sample in enumerate(samples):
        where = f"sample {i} of the {part} set"
        x, y = _pair(sample, where)
        xs.append(_tensor(x, where))
        ys.append(_label(y, where))
        if xs[-1].shape != xs[0].shape or xs[-1].dtype != xs[0].dtype:
            raise ValueError(
                f"{where} is {_describe(xs[-1])} but the first one is {_describe(xs[0])}; give all the same"
            )
    if not xs:
        raise ValueError(f"the {part} set is empty; give at least one sample")
    return torch.stack(xs), torch.stack(ys)


def _tensor(x: Any, where: str) -> Tensor:
    if isinstance(x, Image.Image):
        pixels = np.array(x if x.mode == "L" else x.convert("RGB"))
        return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())
    if isinstance(x, np.ndarray) and x.dtype.kind in "biuf":
        return torch.from_numpy(x.copy())
    if isinstance(x, Tensor):
        return x.detach().cpu()
    raise ValueError(f"{where} has x of type {type(x).__name__}; give a tensor, a numeric array or an image")


def _label(y: Any, where: str) -> Tensor:
    if isinstance(y, int | np.integer):
        return torch.tensor(int(y))
    if isinstance(y, Tensor) and y.ndim == 0 and not y.is_floating_point():
        return y.detach().cpu().to(torch.int64)
    raise ValueError(f"{where} has the label {str(y)[:40]} of type {type(y).__name__}; give a whole number")


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
