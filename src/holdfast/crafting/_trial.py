"""Times bfloat16 on this processor and prints its speed-up over float32.

It runs in a subprocess, because virtual machines may advertise instructions that kill the process that uses them.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

_ROUNDS = 5


def main() -> None:
    """Print the time of float32 over that of bfloat16, for input gradients of a linear layer and a convolution."""
    print(sum(_seconds(torch.float32)) / sum(_seconds(torch.bfloat16)))


def _seconds(dtype: torch.dtype) -> tuple[float, float]:
    flat, wide = torch.ones(256, 784, dtype=dtype), torch.ones(1024, 784, dtype=dtype)
    images = torch.ones(32, 32, 16, 16, dtype=dtype).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(64, 32, 3, 3, dtype=dtype).contiguous(memory_format=torch.channels_last)
    linear, conv = torch.nn.functional.linear, torch.nn.functional.conv2d
    return _least(lambda x: linear(x, wide), flat), _least(lambda x: conv(x, kernel), images)


def _least(layer: Callable[[Tensor], Tensor], x: Tensor) -> float:
    taken = []
    for _ in range(_ROUNDS):
        leaf, started = x.detach().requires_grad_(), time.perf_counter()
        torch.autograd.grad(layer(leaf).sum(), leaf)
        taken.append(time.perf_counter() - started)
    return min(taken)


if __name__ == "__main__":
    main()
