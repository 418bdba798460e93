"""A user's own network, and the names of its layers."""

from typing import Any

from torch import Tensor, nn


class Own(nn.Module):
    """A user's network after the normalization it was trained with; its errors are reported as errors of the model.

    Attacks and certifiers are given this module, not the network inside: it takes inputs in [0, 1] and returns what
    ``network`` returns for ``normalize`` of them. Without a normalization ``normalize`` is ``nn.Identity()``.
    """

    def __init__(self, network: nn.Module, normalize: nn.Module | None = None) -> None:
        super().__init__()
        self.normalize = nn.Identity() if normalize is None else normalize
        self.network = network

    def forward(self, x: Tensor) -> Any:
        """The output of the network: logits, or an object with ``.logits``."""
        try:
            return self.network(self.normalize(x))
        except Exception as error:
            raise RuntimeError(raised("the model", error)) from error


def bare(model: nn.Module) -> nn.Module:
    """The user's network, whose names of layers and weights are those that the user knows; other models unchanged."""
    return model.network if isinstance(model, Own) else model


def raised(doing: str, error: BaseException) -> str:
    """One sentence about an error of the user's code."""
    message = " ".join(str(error).split())[:300]
    return f"{doing} raised {type(error).__name__}" + (f": {message}" if message else "")
