"""Whether tensors changed: no way of writing goes unnoticed."""

import pytest
import torch
from torch import nn

from holdfast.models.unchanged import Unchanged


def settled(tensors) -> Unchanged:
    """What knows these tensors: the first call sees their places, the second their contents."""
    unchanged = Unchanged()
    assert [unchanged(tensors) for _ in range(4)] == [False, False, True, True]
    return unchanged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (4, 6), (2, 3, 5)])
def test_one_number_written_behind_the_version(dtype, shape) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    unchanged = settled([tensor])
    tensor.data.flatten()[-1:].fill_(1)
    assert not unchanged([tensor])
    assert unchanged([tensor])


def test_a_sign_that_equality_does_not_see() -> None:
    tensor = torch.zeros(8)
    unchanged = settled([tensor])
    tensor.data[3] = -0.0
    assert not unchanged([tensor])


def test_parts_and_other_orders_of_memory() -> None:
    whole = torch.arange(30.0)
    parts = [whole[1:9], whole[2:22].reshape(4, 5).t(), whole[::3]]
    unchanged = settled(parts)
    whole.data[3] += 1
    assert not unchanged(parts)


def test_a_step_of_an_optimizer() -> None:
    layer = nn.Linear(3, 2)
    tensors = list(layer.parameters())
    unchanged = settled(tensors)
    layer(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(tensors, lr=0.1).step()
    assert not unchanged(tensors)


def test_another_tensor_of_the_same_contents() -> None:
    tensor = torch.ones(5)
    unchanged = settled([tensor])
    assert not unchanged([tensor.clone()])
    assert not unchanged([])


def test_tensors_without_versions_are_never_unchanged() -> None:
    with torch.inference_mode():
        tensor = torch.ones(5)
    unchanged = Unchanged()
    assert not any(unchanged([tensor]) for _ in range(4))


def test_devices_that_would_have_to_be_waited_for() -> None:
    unchanged = Unchanged()
    assert not any(unchanged([torch.ones(5, device="meta")]) for _ in range(4))
