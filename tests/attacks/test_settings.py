"""Settings and batches of the wrong type give one clear sentence."""

from typing import Any

import pytest
import torch

from holdfast import PGD, TLA, Batch, LInf, Rng, Threat

THREAT = Threat(LInf(), 0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 2.5}, "steps is 2.5 but it must be a whole number"),
        ({"restarts": 1.5}, "restarts is 1.5 but it must be a whole number"),
        ({"loss": "cross_entropy"}, "loss is 'cross_entropy' but must be a function, e.g. holdfast.losses"),
    ],
)
def test_settings_of_the_wrong_type_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PGD(threat=THREAT, **settings)


def test_tla_says_what_its_batch_lacks() -> None:
    x, y, index = torch.rand(4, 3), torch.tensor([0, 1, 0, 1]), torch.arange(4)
    method, model = TLA(attack=PGD(threat=THREAT, steps=1, keep="last")), torch.nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"no positives; give Batch\(x, y, index, positive=..., pool=...\)"):
        method(model, Batch(x, y, index), progress=0, rng=Rng(0))
    with pytest.raises(ValueError, match="no pool; give Batch"):
        method(model, Batch(x, y, index, positive=x), progress=0, rng=Rng(0))
    with pytest.raises(ValueError, match="pool is a Tensor but must be a Batch"):
        Batch(x, y, index, positive=x, pool=x)  # type: ignore[arg-type]
