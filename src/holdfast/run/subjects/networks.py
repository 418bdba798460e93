"""The attacks and certificates of a recipe as the evaluation of a network."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from holdfast.evaluation.measurements.cascade import outputs_of
from holdfast.evaluation.measurements.certificate import Certified
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.evaluation.subject import Subject
from holdfast.evaluation.suite import Attacks, measurements
from holdfast.models.imported import import_from
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.certify import bind, certifier_table
from holdfast.run.session import Evaluation, Session


def imports_of(recipe: Recipe) -> AbstractContextManager[None]:
    """Context in which the user's networks of a recipe are imported from the working directory."""
    configs = [recipe.model, *(entry.model for entry in recipe.methods.values())]
    own = recipe.models or any(config is not None and config.own for config in configs)
    return import_from(os.getcwd()) if own else nullcontext()


def network_evaluation(session: Session, subject: Subject, attacks: Attacks) -> Evaluation:
    """The evaluation of a network: clean prediction, attacks, accuracy-vs-eps curve and certificates of the recipe."""
    config, model = session.recipe.evaluate, subject.model
    assert model is not None  # a network
    samples = session.samples(config.samples)
    classes = outputs_of(model, samples.batch(torch.arange(1), session.device).x)
    measured: list[Measurement] = [
        *measurements(attacks, config, len(samples), classes),
        *certificate_measurements(session.recipe, model),
    ]
    return Evaluation(subject, samples, measured, config.shard)


def certificate_measurements(recipe: Recipe, model: nn.Module) -> list[Certified]:
    """The certificates of a recipe; a certifier that cannot handle the network refuses it here, before any work."""
    found = []
    for name, certifier in recipe.certificates.items():
        try:
            bound = bind(certifier, model)
        except ValueError as error:
            raise ValueError(f"certificates.{name}: {error}") from error
        shard = None if recipe.certify is None else recipe.certify.shard
        found.append(Certified(name=name, certifier=bound, recipe=json_table(certifier_table(certifier)), shard=shard))
    return found
