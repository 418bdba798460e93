"""Whether modules changed: no way of writing goes unnoticed."""

import pytest
import torch
from torch import nn

from holdfast.crafting.unchanged import Unchanged


class Holds(nn.Module):
    """Tensors, as a module has them."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"t{number}", tensor)


def settled(*modules: nn.Module) -> Unchanged:
    """A detector that knows these modules: the first call sees their addresses, the second their contents."""
    unchanged = Unchanged()
    assert [unchanged(modules) for _ in range(4)] == [False, False, True, True]
    return unchanged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (4, 6), (2, 3, 5)])
def test_a_write_that_the_version_counter_misses(dtype, shape) -> None:
    module = Holds(torch.zeros(shape, dtype=dtype))
    unchanged = settled(module)
    module.t0.data.flatten()[-1:].fill_(1)
    assert not unchanged([module])
    assert unchanged([module])


def test_the_sign_of_zero() -> None:
    module = Holds(torch.zeros(8))
    unchanged = settled(module)
    module.t0.data[3] = -0.0
    assert not unchanged([module])


def test_swapped_rows() -> None:
    layer = nn.Linear(6, 4)
    unchanged = settled(layer)
    layer.weight.data.copy_(layer.weight.data.flip(0))
    assert not unchanged([layer])


def test_slices_and_strided_tensors() -> None:
    whole = torch.arange(30.0)
    module = Holds(whole[1:9], whole[2:22].reshape(4, 5).t(), whole[::3])
    unchanged = settled(module)
    whole.data[3] += 1
    assert not unchanged([module])


def test_a_step_of_an_optimizer() -> None:
    layer = nn.Linear(3, 2)
    unchanged = settled(layer)
    layer(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert not unchanged([layer])


def test_another_tensor_of_the_same_contents() -> None:
    module = Holds(torch.ones(5))
    unchanged = settled(module)
    module.t0 = module.t0.clone()
    assert not unchanged([module])
    assert not unchanged([])


def test_tensors_without_versions_are_never_unchanged() -> None:
    with torch.inference_mode():
        module = Holds(torch.ones(5))
    unchanged = Unchanged()
    assert not any(unchanged([module]) for _ in range(4))


def test_other_devices_are_never_unchanged() -> None:
    unchanged = Unchanged()
    assert not any(unchanged([Holds(torch.ones(5, device="meta"))]) for _ in range(4))
