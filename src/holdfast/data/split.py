"""Data sets held in memory, their parts, their validation and the split of training and validation samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import cycle

import torch
from torch import Tensor

from holdfast.contracts import Batch
from holdfast.rng import Rng


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set: x (n, *shape), y (n,) and the positions of its samples in the published file.

    x is floating point in [0, 1], or uint8 from 0 to 255, which takes a quarter of the memory and is divided by 255 in
    :meth:`batch`. The test part of a tabular data set may exceed [0, 1].
    """

    x: Tensor
    y: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, which: Tensor, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Batch:
        """The samples at these positions of the split, x in [0, 1] as ``dtype``."""
        x = self.x[which].to(device)  # moved before it grows from one byte to four
        x = x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)
        return Batch(x, self.y[which].to(device), self.index[which].to(device))

    def take(self, which: Tensor) -> "Split":
        """Return a split of the samples at these positions; they keep their ``index``."""
        return Split(self.x[which], self.y[which], self.index[which])

    def spread(self, count: int | None) -> "Split":
        """Return ``count`` evenly spaced samples, or all if it is None."""
        return self if count is None or count >= len(self) else self.take(spread(len(self), count))


def spread(n: int, count: int | None) -> Tensor:
    """Return ``count`` evenly spaced positions of n, or all: the first samples of MNIST are not representative."""
    kept = n if count is None else min(n, count)
    return torch.arange(kept) * n // max(kept, 1)


def digest_of(*values: Tensor) -> str:
    """Return the SHA-256 of tensors, including their types and shapes."""
    digest = sha256()
    for tensor in values:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named data set with training, validation and test samples."""

    name: str
    train: Split
    valid: Split
    test: Split
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part, split in (("validation", self.valid), ("test", self.test)):
            if split.x.shape[1:] != self.train.x.shape[1:]:
                given = tuple(split.x.shape[1:])
                raise ValueError(f"{self.name} trains on samples of shape {self.shape} but its {part} set has {given}")
        counts = self.train.y.bincount(minlength=len(self.classes)).tolist()
        if 0 in counts:
            raise ValueError(
                f"{self.name} has {len(counts)} classes but no training sample of class {counts.index(0)}; "
                "number the labels from 0 without gaps"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all samples, which identifies the data that a result was computed from."""
        parts = (self.test, self.train, self.valid)
        return digest_of(*(values for part in parts for values in (part.x, part.y)))


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Test samples without training samples, to evaluate an existing model; ``classes`` is None if unknown."""

    name: str
    test: Split
    classes: tuple[str, ...] | None

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the samples and their positions."""
        return digest_of(self.test.x, self.test.y, self.test.index)


def checked(x: Tensor, y: Tensor, *, classes: int | None, part: str, bounded: bool = True) -> Split:
    """Validate samples and labels and return them as a split; raise ValueError if they are invalid.

    ``classes`` is None where the number of classes is not known yet. ``bounded=False`` allows x to exceed [0, 1], as
    tabular test samples outside the training range do.
    """
    for problem in _problems(x, y, classes, bounded):
        raise ValueError(f"the {part} set {problem}")
    return Split(x, y.to(torch.int64), torch.arange(len(y)))


def _problems(x: Tensor, y: Tensor, classes: int | None, bounded: bool) -> Iterator[str]:
    # a generator: each check relies on the earlier ones
    if x.ndim < 2 or y.ndim != 1:
        yield (
            f"has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; give x as (n, ...) and y as (n,) labels"
        )
    if len(x) != len(y):
        yield f"has {len(x)} samples but {len(y)} labels; give one label for each sample"
    if not x.numel():
        yield f"is empty: x has shape {tuple(x.shape)}; give at least one sample"
    yield from _pixel_problems(x, bounded)
    yield from _label_problems(y, classes)


def _pixel_problems(x: Tensor, bounded: bool) -> Iterator[str]:
    if x.dtype == torch.uint8:
        return
    if not x.is_floating_point():
        yield f"has x of type {_type_name(x)}; give uint8 from 0 to 255 or floating point in [0, 1]"
    low, high = (bound.float() for bound in x.aminmax())  # models get float32; aminmax propagates NaN
    if not (low.isfinite() and high.isfinite()):
        yield f"holds {int((~x.isfinite()).sum())} values of x that are NaN or infinite; repair or remove them"
    if bounded and (low < 0 or high > 1):
        yield (
            f"has x in [{low:.6g}, {high:.6g}] but [0, 1] is allowed; give raw pixels scaled to [0, 1] and put "
            "normalization inside the model"
        )


def _label_problems(y: Tensor, classes: int | None) -> Iterator[str]:
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        yield f"has labels of type {_type_name(y)}; give integers"
    low, high = int(y.min()), int(y.max())
    if low < 0 or (classes is not None and high >= classes):
        allowed = "labels start at 0" if classes is None else f"with {classes} classes 0 to {classes - 1} are allowed"
        yield (f"has labels from {low} to {high} but {allowed}; number the labels from 0 without gaps")


def _type_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def split_train(full: Split, share: float | int, seed: int) -> tuple[Split, Split]:
    """Split into training and validation samples, stratified by class.

    ``share`` is the fraction (float) or number (int) of validation samples, and the seed alone selects them. Both parts
    keep the order of the samples, and every class keeps at least one training sample.
    """
    counts = full.y.bincount()
    # not torch.randperm, whose results may change between releases
    order = Rng(seed).fork("validation").uniform(torch.empty(len(full), dtype=torch.float64)).argsort(stable=True)
    held = torch.zeros(len(full), dtype=torch.bool)
    for label, number in enumerate(_apportion(counts.tolist(), _number(share, counts))):
        held[order[full.y[order] == label][:number]] = True
    return full.take((~held).nonzero()[:, 0]), full.take(held.nonzero()[:, 0])


def data_set(
    name: str, parts: Mapping[str, tuple[Tensor, Tensor]], classes: Sequence[str], *, valid: float | int, seed: int
) -> DataSet:
    """Validate the parts train, test and optionally valid; without valid, hold validation samples out of train."""
    splits = {part: checked(x, y, classes=len(classes), part=f"{name} {part}") for part, (x, y) in parts.items()}
    whole = splits["train"]
    train, validation = (whole, splits["valid"]) if "valid" in splits else split_train(whole, valid, seed)
    return DataSet(name, train, validation, splits["test"], tuple(classes))


def _number(share: float | int, counts: Tensor) -> int:
    if not isinstance(share, int | float):
        raise ValueError(f"valid is {share!r} but must be a share between 0 and 1, or a whole number")
    n, most = int(counts.sum()), int((counts - 1).clamp(min=0).sum())
    number = share if isinstance(share, int) else round(share * n) if 0 < share < 1 else 0
    if isinstance(share, bool) or not 1 <= number <= most:
        raise ValueError(
            f"valid = {share} asks to hold out {number} of {n} training samples; "
            f"give a share between 0 and 1, or a whole number, that holds out 1 to {most}"
        )
    return number


def _apportion(counts: list[int], total: int) -> list[int]:
    n = sum(counts)
    taken = [total * count // n for count in counts]  # less than count, because total < n
    by_remainder = sorted(range(len(counts)), key=lambda label: (-(total * counts[label] % n), label))
    for label in cycle(by_remainder):
        if sum(taken) == total:
            break
        taken[label] += taken[label] < counts[label] - 1
    return taken
