"""What every test shares: one thread, repeatable examples, a source of randomness."""

import pytest
import torch
from hypothesis import settings

from holdfast.rng import Rng

torch.set_num_threads(1)
settings.register_profile("holdfast", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("holdfast")


@pytest.fixture(scope="session")  # an Rng has no state, and hypothesis refuses fixtures made anew for each test
def rng() -> Rng:
    return Rng(0)
