"""Models of the zoo: loaded with their checksum verified, as accurate as their card says, and small."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import holdfast
from holdfast import zoo
from holdfast.data import load
from tiny_study import one_sentence

ZOO = Path(__file__).parents[1] / "zoo"
DIGITS = "digits-tla"


def test_digits_model_has_the_accuracy_of_its_card() -> None:
    model, card = holdfast.load_model(DIGITS), zoo.card(DIGITS)
    test = load("digits", None).test
    assert not model.training
    with torch.no_grad():
        right = model(test.batch(torch.arange(len(test))).x).argmax(1) == test.y
    assert (len(right), right.double().mean().item()) == (
        card.under("clean").n,
        pytest.approx(card.under("clean").share, abs=1e-5),
    )
    found = holdfast.evaluate(model, "digits", threat="linf:0.2", attacks="pgd:steps=40", progress=False)
    assert found.robust_accuracy.value == pytest.approx(card.under("PGD-40").share, abs=0.01)
    assert card.under("worst case").share <= min(one.share for one in card.accuracy if one.eps == 0.2)
    assert "AutoAttack fooled" in card.notes[0]


@pytest.mark.parametrize("name", zoo.names(ZOO))
def test_every_model_loads_and_its_card_is_complete(name: str) -> None:
    card, model = zoo.card(name), zoo.load_model(name)
    x = torch.rand(2, *card.shape)
    assert model(x).shape == (2, card.classes)
    assert card.name == name
    assert card.commit
    assert all(one.low <= one.share <= one.high for one in card.accuracy)
    assert {"clean", "worst case", "triage"} <= {one.attack for one in card.accuracy}


def test_the_zoo_is_small() -> None:
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) <= 8 << 20


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo with one model, which HOLDFAST_ZOO names."""
    shutil.copytree(ZOO / DIGITS, tmp_path / "zoo" / DIGITS)
    monkeypatch.setenv("HOLDFAST_ZOO", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def test_a_zoo_elsewhere_is_named_by_argument_or_variable(copy: Path, tmp_path: Path) -> None:
    assert zoo.names() == [DIGITS]
    shutil.copytree(copy / DIGITS, tmp_path / "other" / "mine")
    assert zoo.names(tmp_path / "other") == ["mine"]
    one, two = zoo.load_model(DIGITS), zoo.load_model("mine", tmp_path / "other")
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_changed_or_missing_weights_are_refused(copy: Path) -> None:
    path = copy / DIGITS / "weights.safetensors"
    tensors = load_file(path)
    tensors["head.bias"] += 1
    save_file(tensors, path)
    with pytest.raises(ValueError, match="does not match the checksum of its card"):
        zoo.load_model(DIGITS)
    path.unlink()
    with pytest.raises(ValueError, match="is missing"):
        zoo.load_model(DIGITS)


def test_a_damaged_card_is_refused(copy: Path) -> None:
    path = copy / DIGITS / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"more": 1}))
    with pytest.raises(ValueError, match=r"card\.json is not the card of a model \(Extra inputs"):
        zoo.load_model(DIGITS)


@pytest.mark.parametrize("model", [{"encoder": "nets:build"}, {"module": "os:getcwd"}])
def test_a_card_cannot_have_code_imported(copy: Path, model: dict[str, str]) -> None:
    path = copy / DIGITS / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": model}))
    with pytest.raises(ValueError, match="a zoo holds encoders of holdfast"):
        zoo.load_model(DIGITS)


@pytest.mark.parametrize("name", ["digits-tia", "../zoo/digits-tla", ""])
def test_unknown_models_are_refused_with_those_that_exist(copy: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{name}' in .*known: {DIGITS}"):
        zoo.load_model(name)


def test_a_folder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="no zoo at nowhere; name its folder, or set HOLDFAST_ZOO"):
        zoo.names("nowhere")


def test_list_names_the_models_with_their_accuracy(call: Any, copy: Path) -> None:
    done = call("list", "zoo")
    assert done.code == 0
    assert f"{DIGITS}  " in done.out
    assert "% without attack" in done.out
    (copy / DIGITS / "card.json").unlink()
    assert call("list", "zoo").out == ""


def test_list_without_a_zoo_says_so(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ZOO", "nowhere")
    assert "there is no zoo at nowhere" in one_sentence(call("list", "zoo"), 2)
