"""Builds what a recipe names: its data set and its models."""

import inspect
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from holdfast import data
from holdfast.data import DataSet, EvaluationSet
from holdfast.models import imported
from holdfast.models.classifier import Classifier, Normalize, PerImage, adapt, as_own
from holdfast.recipes import kinds
from holdfast.recipes.schema import DataConfig, Recipe
from holdfast.recipes.tables.model import ModelConfig
from holdfast.rng import Rng


def load_data(config: DataConfig, folder: Path | None) -> DataSet:
    """Load the data set of a recipe."""
    return data.load(config.name, folder, valid=config.valid, seed=config.seed, verify=config.verify, size=config.size)


def load_for(recipe: Recipe, folder: Path | None) -> DataSet | EvaluationSet:
    """Load the data that a recipe needs; only the test samples if nothing is trained or fitted."""
    if recipe.methods or recipe.metrics:
        return load_data(recipe.data, folder)
    return data.load_test(recipe.data.name, folder, samples=recipe.evaluate.samples, size=recipe.data.size)


def build_model(config: ModelConfig, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A fresh classifier whose weights depend only on the seed, and on the file of weights if one is named."""
    _check_options(config)
    name, weights = str(config.module or config.encoder), None if config.weights is None else Path(config.weights)
    own = imported.build(name, weights, shape, classes, seed) if config.own else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Rng(seed).fork("weights").seed)
        try:
            model = _assembled(config, own, shape, classes)
            with torch.no_grad():  # fails now, not during training, if the shapes do not fit
                logits = adapt(model.eval()).outputs(torch.zeros(2, *shape)).logits
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"model {name!r} cannot be made for samples of shape {shape} ({reason})") from error
    if logits.shape[1] != classes:
        raise ValueError(f"model {name!r} has {logits.shape[1]} outputs but the data has {classes} classes")
    return model.train()


def _check_options(config: ModelConfig) -> None:
    known = () if config.own else inspect.signature(kinds.member("encoder", str(config.encoder))).parameters
    for name in config.options:
        if name not in known:
            raise ValueError(f"encoder {config.encoder!r} has no {name}; leave model.{name} out")


def _assembled(config: ModelConfig, own: nn.Module | None, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The user's network, or an encoder, holdfast's or the user's, with its head."""
    normalize = _normalize(config)
    if config.module is not None and own is not None:
        return as_own(own, normalize)
    encoder = own or cast(nn.Module, kinds.member("encoder", str(config.encoder))(shape, **config.options))
    width = cast(int, encoder.width) if own is None else _width(encoder, normalize, shape)
    return Classifier(encoder, config.head.make(width, classes), normalize)


@torch.no_grad()
def _width(encoder: nn.Module, normalize: nn.Module | None, shape: tuple[int, ...]) -> int:
    """The number of features that the user's encoder gives."""
    x = torch.zeros(2, *shape)
    features = encoder.eval()(x if normalize is None else normalize(x))
    if not isinstance(features, Tensor) or features.ndim != 2:
        given = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"the encoder gives {given} for 2 samples but features of shape (2, width) are needed")
    return features.shape[1]


def _normalize(config: ModelConfig) -> nn.Module | None:
    if config.per_image:
        return PerImage()
    return None if config.mean is None or config.std is None else Normalize(config.mean, config.std)
