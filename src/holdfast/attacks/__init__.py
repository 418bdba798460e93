"""Attacks, one per file: the file name is the recipe name, and the file defines one public frozen dataclass.

Black-box attacks take any callable that returns scores or labels; :func:`from_numpy` makes one of a scikit-learn
classifier.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts import Predictor


def from_numpy(predict: Callable[[NDArray[Any]], Any], *, flatten: bool = True) -> Predictor:
    """Return a function of tensors that black-box attacks can query, for a function of numpy arrays.

    ``from_numpy(classifier.predict_proba)`` gives scores and ``from_numpy(classifier.predict)`` labels, which must be
    class indices from 0. Inputs are flattened to (b, features), as scikit-learn expects, unless ``flatten`` is False.
    """
    if not callable(predict):
        raise ValueError(f"predict is a {type(predict).__name__} but must be a function, e.g. classifier.predict_proba")

    def answer(x: Tensor) -> Tensor:
        array = x.detach().cpu().numpy()
        found = np.asarray(predict(array.reshape(len(array), -1) if flatten else array))
        if found.dtype.kind not in "iufb":
            raise ValueError(
                f"the function returned {found.dtype} but scores or class indices from 0 are needed; map class names "
                "to their indices, e.g. with sklearn.preprocessing.LabelEncoder"
            )
        return torch.from_numpy(found).to(x.device)

    return answer
