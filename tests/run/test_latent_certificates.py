"""Recipes with [certificates.latent_neighbors]: the gallery is of training samples, and radii are the certifier's."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.certify.latent_neighbors import LatentNeighbors
from holdfast.geometry import NORMS
from holdfast.recipes import schema
from holdfast.recipes.assemble import load_data
from holdfast.records.records import Records
from holdfast.rng import Rng
from tiny_study import one_seed, one_sentence

TABLES = """
[models.net]
module = "latent_nets:build"
[certificates.latent]
name = "latent_neighbors"
norm = "l2"
gallery = 100
k = 3
[certificates.learned]
name = "latent_neighbors"
norm = "l2"
distance = "mahalanobis"
gallery = 60
[certify]
samples = 8
radii = [0.01, 0.1]"""
RECIPE = one_seed(TABLES, 8)
NETS = """import torch
from torch import nn

def build():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
"""


@pytest.fixture(autouse=True)
def _recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mine.toml").write_text(RECIPE)
    Path("latent_nets.py").write_text(NETS)
    yield
    sys.modules.pop("latent_nets", None)


def test_networks_of_a_recipe_are_certified_with_a_gallery_of_training_samples(call: Any) -> None:
    done = call("certify", "mine.toml", "--set", "methods=false", "--out", "out")
    assert done.code == 0, done.err
    found = Records.load(Path("out/net/seed-0/records"))
    label, radius = found.columns["prediction:l2:latent"], found.columns["radius:l2:latent"]
    digits = load_data(schema.load("mine.toml").data, None)
    net = importlib.import_module("latent_nets").build()
    gallery = digits.train.spread(100).batch(torch.arange(100))
    certify = LatentNeighbors(model=net, points=gallery.x, labels=gallery.y, k=3, norm=NORMS["l2"])
    expected = certify(digits.test.spread(8).batch(torch.arange(8)).x, rng=Rng(0))
    np.testing.assert_array_equal(label, expected.label)
    np.testing.assert_allclose(radius, expected.radius, rtol=0.02)  # the network is bounded inside a wrapper there
    assert (radius > 0).any()
    assert (found.columns["radius:l2:learned"] > 0).any()
    assert found.certificates["learned"]["certifies"] == "the nearest neighbors of its features"
    assert "the nearest neighbors of its features" in Path("out/report.html").read_text()
    times = {path: path.stat().st_mtime_ns for path in Path().rglob("parts/*.npz")}
    assert call("certify", "mine.toml", "--set", "methods=false", "--out", "out").code == 0
    assert times == {path: path.stat().st_mtime_ns for path in Path().rglob("parts/*.npz")}


def test_wrong_settings_are_refused_while_the_recipe_is_read(call: Any) -> None:
    done = call("certify", "mine.toml", "--set", "certificates.latent.k=2", "--out", "out")
    assert "certificates.latent: k is 2 but must be odd" in one_sentence(done, 2)
    done = call("certify", "mine.toml", "--set", "certificates.latent.points=[1]", "--out", "out")
    assert "has no way to write it" in one_sentence(done, 2)
