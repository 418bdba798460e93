"""Every public file of attacks, methods, encoders and heads is a name that recipes can use."""

import inspect
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path

import pytest
import torch

from holdfast.contracts import Attack
from holdfast.geometry import NORMS, LInf, Threat
from holdfast.members import unknown
from holdfast.recipes import kinds
from holdfast.recipes.build import build_attack, build_loss, build_method, table_of

KINDS = [(kind, name) for kind in kinds.FOLDERS for name in kinds.names(kind)]
LOSSES = sorted(kinds.losses())


@pytest.mark.parametrize("kind", kinds.FOLDERS)
def test_every_public_file_is_a_recipe_name(kind: str) -> None:
    folder = Path(kinds.FOLDERS[kind].__path__[0])
    assert kinds.names(kind) == sorted(f.stem for f in folder.glob("*.py") if not f.stem.startswith("_"))
    assert kinds.names(kind)


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_every_name_has_one_public_class_with_a_docstring(kind: str, name: str) -> None:
    cls = kinds.member(kind, name)
    assert cls.__module__ == f"{kinds.FOLDERS[kind].__name__}.{name}"
    assert (cls.__doc__ or "").strip()
    assert kinds.member(kind, name.replace("_", "-")) is cls  # hyphens and underscores are equivalent


def _has(kind: str, name: str, setting: str) -> bool:
    return setting in inspect.signature(kinds.member(kind, name)).parameters


def built_in_some_norm(name: str) -> Attack:
    """The attack in the first norm for which it has a form."""
    for norm in NORMS.values():
        with suppress(ValueError):
            return build_attack(name, "attacks.x", Threat(norm, 0.1))
    raise AssertionError(f"{name} has no form for any norm")


@pytest.mark.parametrize("name", [name for name in kinds.names("attack") if not _has("attack", name, "attack")])
def test_every_attack_is_built_from_its_name(name: str) -> None:
    attack = built_in_some_norm(name)
    assert kinds.name_of(attack) == name
    assert attack.threat.eps == 0.1
    again = build_attack(table_of(attack), "attacks.x", None)
    assert table_of(again) == table_of(attack)


@pytest.mark.parametrize(
    "name", [name for name in kinds.names("method") if name != "metric"]
)  # needs an optional dependency
def test_every_method_is_built_from_its_name(name: str) -> None:
    threat = Threat(LInf(), 0.1)
    craft = build_attack({"name": "pgd", "keep": "last"}, "craft", threat)
    inside = (
        {"method": {"name": "trades"}} if "method" in inspect.signature(kinds.member("method", name)).parameters else {}
    )
    method = build_method({"name": name} | inside, "methods.x", threat, craft)
    assert kinds.name_of(method) == name
    assert is_dataclass(method) or isinstance(method, torch.nn.Module)


@pytest.mark.parametrize("name", kinds.names("encoder"))
def test_every_encoder_is_built_from_its_name_and_a_shape(name: str) -> None:
    with torch.device("meta"):  # allocates no memory: some are large
        encoder = kinds.member("encoder", name)((3, 32, 32))
    assert isinstance(encoder, torch.nn.Module)
    assert isinstance(encoder.width, int)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_built_from_its_name(name: str) -> None:
    loss = build_loss(name, "attacks.x.loss")
    assert table_of(loss) == name
    assert list(inspect.signature(loss).parameters)[:2] == ["out", "rows"]


def test_losses_are_found_in_every_file_of_the_folder() -> None:
    assert {"cross_entropy", "logit_difference", "logit_pairing", "triplet"} <= set(LOSSES)
    assert not {"unit", "nearest_negative"} & set(LOSSES)  # functions with other parameters than (out, rows)


@pytest.mark.parametrize(("given", "near"), [("PGD", "pgd"), ("adverserial", "adversarial"), ("zzz", None)])
def test_closest_name_is_suggested_ignoring_case(given: str, near: str | None) -> None:
    message = unknown(f"thing {given!r}", given, ["pgd", "fgsm", "adversarial"])
    assert message.startswith(f"unknown thing {given!r}; ")
    assert ("did you mean" in message) == (near is not None)
    assert near is None or f"did you mean {near!r}?" in message
    assert message.endswith("known: adversarial, fgsm, pgd")


def test_private_files_are_no_recipe_names() -> None:
    with pytest.raises(ValueError, match="unknown attack '_ascent'"):
        kinds.member("attack", "_ascent")


def test_private_functions_are_no_losses() -> None:
    assert "cross_entropy" in kinds.losses()
    assert not [name for name in kinds.losses() if name.startswith("_")]
