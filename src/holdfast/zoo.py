"""Trained models that are kept with the source: :func:`load_model` loads one, and its card says what it is.

A zoo is a folder with a folder for each model: ``card.json`` and ``weights.safetensors``.
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from holdfast.members import unknown
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.model import read_model
from holdfast.records import snapshot
from holdfast.settings import path_of

CARD, WEIGHTS = "card.json", "weights.safetensors"
_CHECKOUT = Path(__file__).resolve().parents[2] / "zoo"


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Accuracy(_Row):
    """The share of ``n`` samples that a model classifies correctly under an attack, with its 95 % interval.

    ``attack`` is "clean" without an attack and "worst case" for all attacks of the stated threat.
    """

    attack: str
    norm: str
    eps: float
    share: float
    low: float
    high: float
    n: int


class Card(_Row):
    """What a model is: its data, how it was trained, its accuracy, and the SHA-256 of the file of its weights.

    ``model``, ``method`` and ``train`` are tables as in recipes, and ``commit`` is that of the code which trained it.
    ``notes`` are sentences, such as what AutoAttack found beyond triage.
    """

    name: str
    title: str
    recipe: str
    data: str
    data_digest: str
    shape: tuple[int, ...]
    classes: int
    model: Mapping[str, Any]
    method: Mapping[str, Any]
    train: Mapping[str, Any]
    seed: int
    commit: str | None
    versions: Mapping[str, str]
    threat: str
    accuracy: tuple[Accuracy, ...]
    notes: tuple[str, ...] = ()
    weights: str

    def __str__(self) -> str:
        clean, worst = (self.under(name) for name in ("clean", "worst case"))
        robust = f"{100 * worst.share:.1f} % [{100 * worst.low:.1f}, {100 * worst.high:.1f}] at {self.threat}"
        return f"{self.title}: {100 * clean.share:.1f} % without attack, {robust}, n = {worst.n}"

    def under(self, attack: str) -> Accuracy:
        """The accuracy under one attack."""
        return next(one for one in self.accuracy if one.attack == attack)


def names(folder: str | Path | None = None) -> Sequence[str]:
    """The models of a zoo: of this folder, of the one that HOLDFAST_ZOO names, or of the checkout."""
    return sorted(path.parent.name for path in _folder(folder).glob(f"*/{CARD}"))


def card(name: str, folder: str | Path | None = None) -> Card:
    """The card of a model."""
    zoo = _folder(folder)
    if name not in names(zoo):
        raise ValueError(unknown(f"model {name!r} in {zoo}", str(name), names(zoo)))
    try:
        return Card.model_validate_json((zoo / name / CARD).read_bytes())
    except ValidationError as error:
        raise ValueError(f"{zoo / name / CARD} is not the card of a model ({error.errors()[0]['msg']})") from None


def load_model(name: str, folder: str | Path | None = None) -> nn.Module:
    """A trained model of the zoo, in eval mode: ``load_model("digits-tla")``.

    Models are searched in ``folder``, else in the folder that the variable HOLDFAST_ZOO names, else in the ``zoo`` of
    the checkout. Weights that do not match the checksum of their card are refused. ``holdfast list zoo`` shows all
    models, and :func:`holdfast.zoo.card` says how one was trained and attacked.
    """
    described, path = card(name, folder), _folder(folder) / name / WEIGHTS
    if not path.is_file() or sha256(path.read_bytes()).hexdigest() != described.weights:
        raise ValueError(f"{path} is missing or does not match the checksum of its card; fetch it again")
    config = read_model(described.model, f"the model of {name}")
    if config.own:  # a card must not choose code that is imported
        raise ValueError(
            f"the card of {name} names {config.module or config.encoder!r} but a zoo holds encoders of holdfast"
        )
    model = build_model(config, described.shape, described.classes, described.seed)
    snapshot.load_weights(model, snapshot.read(path)[0], path)
    return model.eval()


def _folder(given: str | Path | None) -> Path:
    folder = path_of(given or os.environ.get("HOLDFAST_ZOO") or _CHECKOUT, "folder")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no zoo at {folder}; name its folder, or set HOLDFAST_ZOO")
    return folder
