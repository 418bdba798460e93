"""Builds what a recipe names: its data set and its models."""

import inspect
from pathlib import Path
from typing import cast

import torch
from torch import nn

from holdfast import data
from holdfast.data import DataSet, EvaluationSet
from holdfast.models.classifier import Classifier, Normalize, PerImage
from holdfast.recipes import kinds
from holdfast.recipes.model import ModelConfig
from holdfast.recipes.schema import DataConfig, Recipe
from holdfast.rng import Rng


def load_data(config: DataConfig, folder: Path | None) -> DataSet:
    """Load the data set of a recipe."""
    return data.load(config.name, folder, valid=config.valid, seed=config.seed, verify=config.verify)


def load_for(recipe: Recipe, folder: Path | None) -> DataSet | EvaluationSet:
    """Load the data that a recipe needs; only the test samples if nothing is trained or fitted."""
    if recipe.methods or recipe.metrics:
        return load_data(recipe.data, folder)
    return data.load_test(recipe.data.name, folder, samples=recipe.evaluate.samples, size=recipe.data.size)


def build_model(config: ModelConfig, shape: tuple[int, ...], classes: int, seed: int) -> Classifier:
    """A fresh classifier whose weights depend only on the seed."""
    cls = kinds.member("encoder", config.encoder)
    known = inspect.signature(cls).parameters
    for name in config.options:
        if name not in known:
            raise ValueError(f"encoder {config.encoder!r} has no {name}; leave model.{name} out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Rng(seed).fork("weights").seed)
        try:
            encoder = cast(nn.Module, cls(shape, **config.options))
            model = Classifier(encoder, config.head.make(cast(int, encoder.width), classes), _normalize(config))
            with torch.no_grad():
                model.eval()(torch.zeros(2, *shape))  # fails now, not during training, if the shapes do not fit
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"model {config.encoder!r} cannot be made for samples of shape {shape} ({reason})"
            ) from error
    return model.train()


def _normalize(config: ModelConfig) -> nn.Module | None:
    if config.per_image:
        return PerImage()
    return None if config.mean is None or config.std is None else Normalize(config.mean, config.std)
