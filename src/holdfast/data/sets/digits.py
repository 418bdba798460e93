"""Digits: the 1797 handwritten digits of 8x8 pixels that come with scikit-learn (Alpaydin and Kaynak 1998)."""

from pathlib import Path

import torch

from holdfast.data.split import DataSet, checked, split_train

_TEST_SHARE, _TEST_SEED = 0.2, 1797  # no split is published; this one must never change


def load(folder: Path | None = None, *, valid: float | int, seed: int, verify: bool = True) -> DataSet:
    """Load scikit-learn's digits; a fixed fifth of each class is the test set. ``folder`` and ``verify`` are unused."""
    from sklearn.datasets import load_digits  # not at the top: this import takes a second

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    full = checked(x, torch.from_numpy(labels), classes=10, part="digits")
    rest, test = split_train(full, _TEST_SHARE, _TEST_SEED)
    train, validation = split_train(rest, valid, seed)
    return DataSet("digits", train, validation, test, tuple("0123456789"))
