"""Sketches of methods: TLA through Batch and Needs, and a proxy loss with trainable parameters."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small import network, numbers
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks.pgd import PGD
from holdfast.contracts import Attack, Batch, Needs, Outputs, Rows, Terms
from holdfast.crafting.view import frozen
from holdfast.data.samplers import Pool, Positives
from holdfast.geometry import LInf, Threat
from holdfast.losses.classification import cross_entropy
from holdfast.methods.tla import TLA
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class Triplets:
    attack: Attack
    needs = Needs(positive=True, pool=6, features=True)

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        assert batch.positive is not None
        assert batch.pool is not None
        x_adv = self.attack(model, batch.x, Rows(batch.y, batch.index), rng=rng.fork("craft"))
        with torch.no_grad(), frozen(model, rng) as view:
            a, pool = view.outputs(x_adv).features, view.outputs(batch.pool.x).features
        near = functional.cosine_similarity(a[:, None], pool[None], dim=2).abs()
        near[batch.y[:, None] == batch.pool.y] = -torch.inf
        inputs = (x_adv, batch.positive, batch.pool.x[near.argmax(1)])
        a, p, n = (adapt(model).outputs(x) for x in inputs)
        cosines = [functional.cosine_similarity(a.features, other.features).abs() for other in (p, n)]
        hinge = (cosines[1] - cosines[0] + 0.05).clamp_min(0).mean()
        entropy = cross_entropy(a, Rows(batch.y, batch.index)).mean()
        return Terms(entropy + 0.5 * hinge, {"cross_entropy": entropy, "triplet": hinge})


def filled(x: Tensor, y: Tensor, which: Tensor, needs: Needs) -> Batch:
    """The batch as training builds it, with the positives and the pool that the method needs."""
    positive = x[Positives(y, seed=0).draw(y[which], which)] if needs.positive else None
    drawn = Pool(len(y), needs.pool, seed=0).draw(0)
    return Batch(x[which], y[which], which, positive, Batch(x[drawn], y[drawn], drawn) if needs.pool else None)


def test_triplets_find_positives_and_negatives_in_the_batch(rng):
    x, y, model = numbers(20, 4, name="x"), torch.arange(20) % 3, network()
    attack = PGD(threat=Threat(LInf(), 0.1), steps=3, keep="last")
    sketch, product = Triplets(attack=attack), TLA(attack=attack, pool=6, noise="none", lambda2=0.0)
    assert sketch.needs == product.needs
    batch = filled(x, y, torch.tensor([3, 11, 7, 0]), sketch.needs)
    assert all((x[y == label] == p).all(1).any() for label, p in zip(batch.y, batch.positive, strict=True))
    assert not (batch.positive == batch.x).all(1).any()
    ours, theirs = (method(model, batch, progress=0.5, rng=rng) for method in (sketch, product))
    assert ours.parts["triplet"] > 0
    assert ours.parts["triplet"].item() == pytest.approx(theirs.parts["triplet"].item(), rel=1e-9)
    assert ours.total.item() == pytest.approx(theirs.total.item(), rel=1e-9)


class Proxies(nn.Module):
    """One proxy per class; softmax over scaled cosines (Movshovitz-Attias et al. 2017, in the NormFace form)."""

    needs = Needs()

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.proxies = nn.Parameter(numbers(classes, width, name="proxies") - 0.5)

    def forward(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        out, rows = adapt(model).outputs(batch.x), Rows(batch.y, batch.index)
        cosine = functional.normalize(out.features) @ functional.normalize(self.proxies).T
        pull = cross_entropy(Outputs(out.x, out.features, 8 * cosine), rows).mean()
        entropy = cross_entropy(out, rows).mean()
        return Terms(entropy + pull, {"cross_entropy": entropy, "proxies": pull})


def test_a_method_with_parameters_is_a_module_that_can_be_trained_and_restored(rng):
    model, method = network(), Proxies(3, 8)
    batch = Batch(numbers(6, 4, name="x"), torch.arange(6) % 3, torch.arange(6))
    terms = method(model, batch, progress=0.5, rng=rng)
    features, proxies = model[:2](batch.x).detach().numpy(), method.proxies.detach().numpy()
    by_loop = 0.0
    for f, label in zip(features, batch.y.tolist(), strict=True):
        z = [8 * (f @ p) / np.linalg.norm(f) / np.linalg.norm(p) for p in proxies]
        by_loop += (np.log(np.exp(z).sum()) - z[label]) / 6
    assert terms.parts["proxies"].item() == pytest.approx(by_loop, rel=1e-9)
    both = [*model.parameters(), *method.parameters()]
    optimizer = torch.optim.SGD(both, lr=0.01)
    terms.total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in both)
    optimizer.step()
    after = method(model, batch, progress=0.5, rng=rng).total
    assert after < terms.total
    other = Proxies(3, 8)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    assert torch.equal(other(model, batch, progress=0.5, rng=rng).total, after)
