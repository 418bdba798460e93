"""The user's own network trained from the command line and in recipes, then attacked, reported and continued."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from holdfast.models.own import bare
from holdfast.recipes import schema
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.model import ModelConfig
from holdfast.records.records import Records
from own_networks import Small
from tiny_study import one_sentence, same, toy

SHORT = ("--set", "train.batch=8", "--set", "craft.steps=2", "--set", "attacks={pgd={steps=3}}", "--set")
SHORT += ("evaluate={strip='pgd'}",)
OWN = ("--model", "own_networks:build", "--data", "npz:toy.npz", "--threat", "linf:0.1", "--epochs", "2", *SHORT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with toy data."""
    monkeypatch.chdir(tmp_path)
    data = toy(60)
    parts = {"train": data.train, "test": data.test}
    np.savez("toy.npz", **{f"{key}_{part}": getattr(one, key) for part, one in parts.items() for key in ("x", "y")})
    return tmp_path


def test_methods_are_added_to_one_study_and_its_folder_is_a_recipe(folder: Path, call: Any) -> None:
    for method in ("tla:pool=12", "adversarial"):
        done = call("train", *OWN, "--method", method, "--out", "out")
        assert done.code == 0, done.err
    assert done.out.splitlines() == ["weights: out/adversarial/seed-0/best.safetensors", "next: holdfast evaluate out"]
    recipe = schema.load("out")
    assert list(recipe.methods) == ["tla", "adversarial"]
    assert recipe.methods["tla"].method.pool == 12  # type: ignore[attr-defined]
    assert recipe.default_out == Path("out")
    done = call("evaluate", "out", "--set", "evaluate.curve='pgd'", "--set", "evaluate.eps=[0.05,0.2]")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "report: out/report.html"
    for method in ("tla", "adversarial"):
        records = Records.load(folder / "out" / method / "seed-0" / "records")
        assert list(records.attacks) == ["pgd", "pgd@0.05", "pgd@0.2"]
    assert "tla" in (folder / "out" / "report.html").read_text()


def test_weights_fit_the_users_network_and_evaluate_as_it(folder: Path, call: Any) -> None:
    assert call("train", *OWN, "--method", "plain", "--out", "out").code == 0
    assert call("evaluate", "out").code == 0
    weights = "out/plain/seed-0/best.safetensors"
    network = Small()
    network.load_state_dict(load_file(weights))
    found = call(
        *("evaluate", "--model", "own_networks:build", "--weights", weights, "--data", "npz:toy.npz"),
        *("--threat", "linf:0.1", "--attack", "pgd:steps=3", "--out", "alone"),
    )
    assert found.code == 0, found.err
    trained = Records.load(folder / "out" / "plain" / "seed-0" / "records")
    alone = Records.load(folder / "alone" / "own_networks-build" / "seed-0" / "records")
    for mine, theirs in (("label", "label"), ("fooled:linf:pgd", "fooled:linf:pgd:steps=3")):
        assert np.array_equal(trained.columns[mine], alone.columns[theirs])


def test_a_stopped_training_continues(folder: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("train", *OWN, "--model", "own_networks:dropping", "--method", "tla")
    assert call(*args, "--out", "whole").code == 0

    def stop(_: object, what: str, done: int, *rest: object) -> None:
        if what.startswith("train tla") and done == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.progress.Progress.report", stop)
        assert call(*args, "--out", "halted").code == 130
    assert not (folder / "halted" / "recipe.toml").exists()
    assert call(*args, "--out", "halted").code == 0
    files = [folder / out / "tla" / "seed-0" / "last.safetensors" for out in ("whole", "halted")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_pretrained_network_with_its_normalization_is_fine_tuned(folder: Path, call: Any) -> None:
    network = Small()
    torch.save({"state_dict": network.state_dict()}, "pretrained.pt")
    start = ("--weights", "pretrained.pt", "--mean", "0.5", "--std", "0.25", "--method", "trades:beta=2")
    still = ("--set", "train.optimizer={name='sgd',lr=0.0}", "--epochs", "1")
    assert call("train", *OWN, *start, *still, "--out", "still").code == 0
    before, after = network.state_dict(), load_file("still/trades/seed-0/last.safetensors")
    learned = [name for name, _ in network.named_parameters()]
    assert same({name: before[name] for name in learned}, {name: after[name] for name in learned})
    assert call("train", *OWN, *start, "--out", "tuned").code == 0
    recipe = schema.load("tuned")
    assert recipe.model is not None
    assert (recipe.model.weights, recipe.model.mean, recipe.model.std) == ("pretrained.pt", (0.5,), (0.25,))
    made = build_model(recipe.model, (1, 4, 4), 3, 0).eval()
    x = torch.rand(5, 1, 4, 4)
    assert torch.equal(made(x), network.eval()((x - 0.5) / 0.25))
    facts = json.loads((folder / "tuned" / "trades" / "seed-0" / "job.json").read_text())["network"]
    assert facts["name"] == "own_networks:build"
    torch.save(Small().state_dict(), "pretrained.pt")
    message = one_sentence(call("train", *OWN, *start, "--out", "tuned"), 2)
    assert "holds a model of other settings (the same network with other first weights" in message


STUDY = """
title = "own and given"
[data]
name = "npz:toy.npz"
[model]
encoder = "tiny"
channels = 1
width = 4
[threat]
norm = "linf"
eps = 0.1
[train]
epochs = 1
batch = 8
[craft]
steps = 2
[methods.AT]
name = "adversarial"
[methods."own AT"]
name = "adversarial"
model = { module = "own_networks:build" }
[methods."own encoder"]
name = "tla"
model = { encoder = "own_networks:encoder", head = "hypersphere" }
[methods.tuned]
name = "alp"
model = { module = "own_networks:build" }
train = { init_from = "own AT" }
[models.given]
module = "own_networks:build"
weights = "given.safetensors"
[attacks.PGD]
name = "pgd"
steps = 3
[attacks.transfer]
[evaluate]
curve = "PGD"
eps = [0.05, 0.2]
"""


def test_own_and_recipe_models_are_one_study_on_one_page(folder: Path, call: Any) -> None:
    save_file(Small().state_dict(), "given.safetensors")
    (folder / "study.toml").write_text(STUDY)
    done = call("run", "study.toml", "--out", "out")
    assert done.code == 0, done.err
    assert "holdfast: transfer is left out: it crafts on a model trained with another seed, which" in done.err
    page = (folder / "out" / "report.html").read_text()
    for name in ("AT", "own AT", "own encoder", "tuned", "given"):
        records = Records.load(folder / "out" / name / "seed-0" / "records")
        assert list(records.attacks) == ["PGD", "PGD@0.05", "PGD@0.2"]
        assert f">{name}<" in page
    for name in ("own AT", "given"):
        done = call("attack", "study.toml", name, "PGD", "--save", "adv.npz", "--out", "out")
        assert done.code == 0, done.err
        with np.load("adv.npz") as arrays:
            records = Records.load(folder / "out" / name / "seed-0" / "records")
            assert np.array_equal(arrays["fooled"], records.columns["fooled:linf:PGD"])
    assert call("report", "out").code == 0  # a folder of results names its recipe
    assert "unknown method 'on AT'" in call("attack", "out", "on AT", "PGD", "--save", "adv.npz").err


def test_own_encoders_get_the_head_of_the_recipe() -> None:
    config = ModelConfig(encoder="own_networks:encoder", mean=(0.5,), std=(0.5,))
    model = build_model(config, (1, 4, 4), 3, 0).eval()
    assert bare(model) is model
    assert model.head.weight.shape == (3, 6)  # type: ignore[union-attr]
    again = build_model(config, (1, 4, 4), 3, 0).eval()
    assert same(model.state_dict(), again.state_dict())
    assert not same(model.state_dict(), build_model(config, (1, 4, 4), 3, 1).state_dict())


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no method": (OWN, "--model needs --method too, e.g. --method tla"),
    "no data": (("--model", "own_networks:build", "--method", "tla"), "--model needs --data too"),
    "unknown method": ((*OWN, "--method", "tls"), "unknown method 'tls'; did you mean 'tla'"),
    "setting": ((*OWN, "--method", "tla:pol=3"), "unknown key 'pol' in methods.tla; did you mean 'pool'"),
    "recipe too": (("quickstart", *OWN, "--method", "tla"), "the recipe 'quickstart' and --model own_networks:build"),
    "epochs of a recipe": (("quickstart", "--epochs", "3"), "--epochs goes with --model; leave it out or use --set"),
    "no epochs": ((*OWN, "--method", "tla", "--epochs", "0"), "epochs is 0 but must be at least 1"),
    "probabilities": (
        (*OWN, "--method", "tla", "--model", "own_networks:probable"),
        "methods.tla: the model seems to give probabilities",
    ),
    "classes": (
        (*OWN, "--method", "tla", "--model", "own_networks:wide"),
        "model 'own_networks:wide' has 7 outputs but the data has 3 classes",
    ),
    "features": (
        (*OWN, "--method", "tla", "--model", "own_networks:convolutional"),
        "methods.tla: TLA compares features, which are the input of the last Linear layer, but the network has none",
    ),
    "module": ((*OWN, "--method", "tla", "--model", "own_networks:bild"), "unknown name 'bild' in the module"),
    "head": (
        (*OWN, "--method", "tla", "--set", "model.head=hypersphere"),
        "head is 'hypersphere' but the module 'own_networks:build' is a whole network with a head of its own",
    ),
    "option": ((*OWN, "--method", "tla", "--set", "model.width=3"), "width is an option of encoders of holdfast"),
    "both": ((*OWN, "--method", "tla", "--set", "model.encoder=mlp"), "name one of encoder .* and module"),
    "other data": ((*OWN, "--method", "tla", "--out", "done", "--set", "data.valid=4"), "done holds results with data"),
    "other settings": (
        (*OWN, "--method", "plain", "--out", "done", "--set", "train.batch=4"),
        "done holds results with method plain other settings, to which results with method plain other settings cannot",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(folder: Path, call: Any, name: str) -> None:
    given, words = BAD[name]
    if "done" in given:
        assert call("train", *OWN, "--method", "plain", "--out", "done").code == 0
    done = call("train", *given)
    (line,) = [line for line in done.err.splitlines() if not line.startswith(("try each", "train "))]
    assert done.code == 2
    assert re.search(words, line), line


ENCODERS = {
    "shape": ({"encoder": "own_networks:unflat"}, r"the encoder gives shape \(2, 4, 2, 2\) for 2 samples but features"),
    "library": ({"encoder": "timm:resnet18"}, "encoder is 'timm:resnet18' but that is a whole network"),
    "weights": ({"encoder": "mlp", "weights": "w.pt"}, "weights are those of your own network; use train.init_from"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_bad_encoders_are_refused(name: str) -> None:
    given, words = ENCODERS[name]
    with pytest.raises(ValueError, match=words):
        build_model(ModelConfig(**given), (1, 4, 4), 3, 0)  # type: ignore[arg-type]


def test_images_of_any_size_are_scaled_for_training(folder: Path, call: Any) -> None:
    draw = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 3)):
        for label in range(3):
            place = folder / "photos" / part / f"class-{label}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 256, (5 + i % 3, 6, 1), np.uint8)[:, :, 0]
                Image.fromarray(pixels).save(place / f"{i}.png")
    args = [word.replace("npz:toy.npz", "imagefolder:photos") for word in OWN]
    done = call("train", *args, "--method", "plain", "--size", "4")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "next: holdfast evaluate runs/own_networks-build-photos-linf-0.1-trained"
    assert call("evaluate", "runs/own_networks-build-photos-linf-0.1-trained").code == 0
