"""Measurements beside a gallery, on a map and around samples: each against a computation by hand."""

from functools import partial
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from holdfast.analysis.projection import projection
from holdfast.attacks.pgd import PGD
from holdfast.data import Split
from holdfast.evaluation.evaluate import Settings, evaluate
from holdfast.evaluation.measurements.attack import Clean
from holdfast.evaluation.measurements.features import Features, Path, small
from holdfast.evaluation.measurements.inside import Classes, Gallery, Map, Placed
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.evaluation.measurements.surroundings import Gaps, Restarts, Surface
from holdfast.evaluation.subject import network
from holdfast.geometry import L2, LInf, Threat
from holdfast.models.detector import Detector
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.records.records import Records
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)
N = 24


def make(head: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Softplus(), head or nn.Linear(6, 3))


NET = make()


def split(n: int = N, seed: int = 0) -> Split:
    x = Rng(seed).uniform(torch.empty(n, 1, 4, 4))
    return Split(x, torch.arange(n) % 3, torch.arange(n) + 100)


def features(x: Tensor) -> Tensor:
    with torch.no_grad():
        return NET[2](NET[1](NET[0](x)))  # type: ignore[no-any-return]


def loss(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(NET(x), y, reduction="none")


def pgd(**settings: Any) -> PGD:
    return PGD(threat=THREAT, **{"steps": 4, "keep": "last"} | settings)


def gallery() -> Gallery:
    known = split(60, seed=1)
    return Gallery(known, features(known.x))


def measured(folder: Folder, *given: Measurement, model: nn.Module = NET, shard: int = 10, n: int = N) -> Records:
    subject = network(model, name="net", seed=0, digest="d", folder=folder, facts={})
    settings = Settings(seed=0, shard=shard, device=torch.device("cpu"), crafting="module")
    return evaluate(subject, split(n), [Clean(), *given], settings, lambda *_: None)


def placed(of: Features, **changes: Any) -> Placed:
    known = gallery()
    detector = Detector.fit(known.features, known.samples.y)
    return Placed(**{"name": "place", "of": of, "gallery": known, "k": (1, 5), "detector": detector} | changes)


@pytest.mark.parametrize("shard", [7, N])
def test_neighbors_votes_and_confidence_are_those_of_the_whole_set(tmp_path: Folder, shard: int) -> None:
    of, known, queries = Features(name="natural", shown=2), gallery(), features(split().x)
    arrays = measured(tmp_path, of, placed(of), shard=shard).arrays
    for column, k in enumerate((1, 5)):
        theirs = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(known.features, known.samples.y)
        assert np.array_equal(arrays["votes:place"][:, column], theirs.predict(queries))
    assert np.array_equal(arrays["nearest:place"], theirs.kneighbors(queries, 10, return_distance=False))
    expected = Detector.fit(known.features, known.samples.y).score(queries)
    assert np.allclose(arrays["score:place"], expected.numpy(), atol=1e-4)
    nearest = arrays["nearest:place"][:2]
    levels = np.rint(255 * known.samples.x.numpy()[nearest])
    assert np.array_equal(arrays["retrieved:place"], levels)
    assert np.array_equal(arrays["retrieved_y:place"], known.samples.y.numpy()[nearest])
    assert np.array_equal(arrays["images:natural"], np.rint(255 * split().x[:2].numpy()))


def test_another_gallery_or_k_is_another_part(tmp_path: Folder) -> None:
    of = Features(name="natural")
    first = measured(tmp_path, of, placed(of)).arrays["votes:place"]
    assert measured(tmp_path, of, placed(of, k=(3,))).arrays["votes:place"].shape == (N, 1)
    other = split(60, seed=2)
    second = measured(tmp_path, of, placed(of, gallery=Gallery(other, features(other.x)))).arrays["votes:place"]
    assert not np.array_equal(first, second)


def test_a_map_is_that_of_the_clean_samples_with_the_others_placed_on_it(tmp_path: Folder) -> None:
    path = Path(attack=pgd(), recipe={}, at=(2, 4))
    found = measured(tmp_path, path, Map(of=path, frames=(0, 2), seed=3), shard=N).arrays
    clean, moved = found["features:path"][:, 0], found["features:path"][:, 2]
    expected = projection(clean, moved, perplexity=(N - 1) / 3, seed=3)
    assert found["map:map"].shape == (N, 2, 2)
    assert np.array_equal(found["map:map"][:, 0], expected.natural.astype(np.float32))
    assert np.array_equal(found["map:map"][:, 1], expected.placed.astype(np.float32))
    assert found["faithful:map"].tolist() == [expected.faithful.successes]


@pytest.mark.parametrize("at", [(1, 3), (4,), (2, 4)])
def test_a_path_keeps_the_steps_that_are_asked_for(tmp_path: Folder, at: tuple[int, ...]) -> None:
    every = measured(tmp_path, Path(attack=pgd(), recipe={})).arrays
    some = measured(tmp_path, Path(attack=pgd(), recipe={}, at=at)).arrays
    assert np.allclose(some["features:path"], every["features:path"][:, (0, *at)], atol=1e-6)
    assert np.array_equal(some["label:path"], every["label:path"][:, (0, *at)])
    assert np.array_equal(every["clean:path"], np.rint(255 * split().x.numpy()))
    assert not np.array_equal(every["clean:path"], every["moved:path"])


def test_classes_are_means_of_the_gallery_and_weights_of_the_last_layer(tmp_path: Folder) -> None:
    found, known = measured(tmp_path, Classes(gallery=gallery())).arrays, gallery()
    assert np.array_equal(found["weight:classes"], NET[3].weight.detach().numpy())
    for k in range(3):
        assert np.allclose(found["mean:classes"][k], known.features[known.samples.y == k].mean(0).numpy(), atol=1e-6)


def test_weights_of_a_hypersphere_head_have_the_length_that_it_uses(tmp_path: Folder) -> None:
    found = measured(tmp_path, Classes(gallery=gallery()), model=make(Hypersphere(6, 3))).arrays["weight:classes"]
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_a_network_without_a_linear_layer_has_no_weights(tmp_path: Folder) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten())
    assert measured(tmp_path, Classes(gallery=gallery()), model=model).arrays["weight:classes"].size == 0


@pytest.mark.parametrize("norm", [LInf(), L2()])
def test_a_surface_is_the_loss_on_a_grid_of_two_directions(tmp_path: Folder, norm: Any) -> None:
    threat = Threat(norm, 0.2)
    found = measured(tmp_path, Surface(threat=threat, points=5, samples=3), shard=N).arrays
    rows, at = found["row:surface"].copy(), np.linspace(-1, 1, 5)
    assert rows.tolist() == [0, 8, 16]
    losses = found["losses:surface"]
    clean = loss(split().x[rows], split().y[rows]).detach().numpy()
    assert np.allclose(losses[:, 2, 2], clean, atol=1e-6)
    # the directions are of length eps, and orthogonal steps add up: the loss is that of the network along each
    rng = Rng(0).fork("evaluate")
    x, index = split().x[rows], split().index[rows]
    u, v = (
        0.2 * norm.steepest(rng.fork(f"direction {name}").at(index).normal(torch.empty_like(x))) for name in ("u", "v")
    )
    assert torch.allclose(norm.length(u), torch.tensor(0.2))
    for i, a in enumerate(at):
        for j, b in enumerate(at):
            expected = loss(x + float(a) * u + float(b) * v, split().y[rows]).detach().numpy()
            assert np.allclose(losses[:, i, j], expected, atol=1e-5)


def test_surfaces_of_two_networks_have_the_same_directions(tmp_path: Folder) -> None:
    surface = Surface(threat=THREAT, points=3, samples=2)
    first = measured(tmp_path / "a", surface, shard=N).arrays["losses:surface"]
    again = measured(tmp_path / "b", surface, model=make(), shard=N).arrays["losses:surface"]
    assert np.array_equal(first, again)


def test_gaps_are_the_largest_deviations_from_the_expansion_that_were_seen(tmp_path: Folder) -> None:
    found = measured(tmp_path, Gaps(threat=THREAT, eps=(0.05, 0.1), steps=(0, 1, 3))).arrays["gaps:gaps"]
    assert found.shape == (N, 2, 3)
    assert (found >= 0).all()
    assert (np.diff(found, axis=2) >= 0).all()  # a maximum over more steps
    x = split().x.clone().requires_grad_()
    losses = loss(x, split().y)
    (gradient,) = torch.autograd.grad(losses.sum(), x)
    bound = torch.zeros(N)
    for seed in range(200):  # no random point deviates much more than the points that were searched
        d = 0.1 * (2 * Rng(seed).uniform(torch.empty_like(split().x)) - 1)
        at = (split().x + d).clamp(0, 1)
        along = ((at - split().x) * gradient).flatten(1).sum(1)
        bound = torch.maximum(bound, (loss(at, split().y) - losses - along).abs().detach())
    assert found[:, 1, 2].mean() > 0.8 * bound.mean().item()


def test_the_first_successful_restart_is_known(tmp_path: Folder) -> None:
    attack = pgd(keep="fooled", steps=2)
    first = measured(tmp_path, Restarts(attack=attack, recipe={}, restarts=3)).arrays["first:restarts"]
    wrong = (NET(split().x).argmax(1) != split().y).numpy()
    assert np.array_equal(first == 0, wrong)
    rng, held = Rng(0).fork("evaluate").fork("restarts"), torch.from_numpy(~wrong)
    for restart in (1, 2, 3):
        batch = split().take(held.nonzero().flatten())
        rows = batch.batch(torch.arange(len(batch))).rows()
        moved = attack(NET, batch.x, rows, rng=rng.fork(restart))
        fooled = (NET(moved).argmax(1) != batch.y).numpy()
        assert np.array_equal(first[held.numpy()] == restart, fooled)
        held[held.clone()] = torch.from_numpy(~fooled)
    assert np.isinf(first[held.numpy()]).all()


def test_nothing_is_measured_twice(tmp_path: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def every() -> list[Measurement]:
        of, path = Features(name="natural"), Path(attack=pgd(), recipe={})
        around: list[Measurement] = [
            Surface(threat=THREAT, points=3, samples=2),
            Gaps(threat=THREAT, eps=(0.1,), steps=(1,)),
            Restarts(attack=pgd(), recipe={}, restarts=2),
        ]
        return [of, placed(of), Classes(gallery=gallery()), path, Map(of=path, frames=(0, 1), seed=0), *around]

    before = measured(tmp_path, *every(), shard=N).arrays
    for kind in (Features, Placed, Classes, Path, Map, Surface, Gaps, Restarts):
        monkeypatch.setattr(kind, "measure", partial(pytest.fail, "measured again"))
    after = measured(tmp_path, *every(), shard=N).arrays
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 1, 8, 8), (2, 1, 8, 8)), ((2, 3, 224, 200), (2, 3, 56, 50)), ((2, 4, 8, 8), (2, 0)), ((2, 9), (2, 0))],
)
def test_images_are_small_and_other_inputs_are_none(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    found = small(torch.full(shape, 0.5))
    assert found.shape == expected
    assert found.dtype == np.uint8
    assert (found == 128).all()
