"""The micro-batch size: measured, and in force within its context."""

import pytest
import torch
from torch import nn

from holdfast.crafting import microbatch


class Slow(nn.Module):
    """Costs most, per sample, with any other number of samples than one."""

    def __init__(self, liked: int) -> None:
        super().__init__()
        self.liked, self.layer, self.seen = liked, nn.Linear(4, 3), set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add(len(x))
        for _ in range(1 if len(x) == self.liked else 10 * len(x)):
            x = x + 0.0
        return self.layer(x)


@pytest.mark.parametrize("liked", [32, 128, 512])
def test_the_fastest_size_is_found(liked: int) -> None:
    model = Slow(liked)
    assert microbatch.measured(model, torch.rand(600, 4), torch.zeros(600, dtype=torch.int64)) == liked
    assert model.seen == {32, 64, 128, 256, 512}


def test_few_samples_are_not_measured() -> None:
    model = Slow(1)
    assert microbatch.measured(model, torch.rand(5, 4), torch.zeros(5, dtype=torch.int64)) == microbatch.USUAL
    assert microbatch.measured(model, torch.rand(40, 4), torch.zeros(40, dtype=torch.int64)) == 32
    assert model.seen == set()


def test_the_size_holds_within_its_context() -> None:
    with microbatch.micro(7):
        assert microbatch.size() == 7
    with pytest.raises(KeyError), microbatch.micro(8):
        raise KeyError
    assert microbatch.size() == microbatch.USUAL
    with pytest.raises(ValueError, match="at least 1"), microbatch.micro(0):
        pass


class Blind(nn.Module):
    """Has no gradient at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()[:, :3]


def test_a_model_without_gradients_gets_some_size() -> None:
    assert microbatch.measured(Blind(), torch.rand(100, 4), torch.zeros(100, dtype=torch.int64)) in (32, 64)
