"""The attacks and certificates of a recipe as the evaluation of a network."""

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from holdfast.data.split import digest_of
from holdfast.evaluation.measurements.attack import Attacked
from holdfast.evaluation.measurements.cascade import outputs_of
from holdfast.evaluation.measurements.certificate import Certified
from holdfast.evaluation.measurements.measurement import Measurement
from holdfast.evaluation.subject import Subject
from holdfast.evaluation.suite import Attacks, measurements
from holdfast.models.imported import import_from
from holdfast.recipes.build import json_table
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.certify import bind, certifier_table, has_gallery, learners
from holdfast.records.provenance import code_version
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
    (clean, *attacked), certified = (
        measurements(attacks, config, len(samples), classes),
        certificate_measurements(session, model),
    )
    measured: list[Measurement] = [clean, *attacked, *certified]
    if config.skip_certified:
        measured = [clean, *certified, *(_spared(attack, certified) for attack in attacked)]
    return Evaluation(subject, samples, measured, config.shard)


def _spared(attack: Measurement, certified: Sequence[Certified]) -> Measurement:
    """The attack without the samples that certificates prove."""
    assert isinstance(attack, Attacked)
    return replace(attack, proofs=tuple(one for one in certified if one.proves(attack.attack.threat)))


def certificate_measurements(session: Session, model: nn.Module) -> list[Certified]:
    """The certificates of a recipe; a certifier that cannot handle the network refuses it here, before any work."""
    found, recipe = [], session.recipe
    for name, certifier in recipe.certificates.items():
        table, given = json_table(certifier_table(certifier)), {}
        if has_gallery(certifier):
            given = _gallery(session, table)
            table["gallery_digest"] = digest_of(given["points"].cpu(), given["labels"].cpu())
            if "matrix" in given:
                table["learned_by"] = code_version("learners")
        try:
            bound = bind(certifier, model, **given)
        except ValueError as error:
            raise ValueError(f"certificates.{name}: {error}") from error
        shard = None if recipe.certify is None else recipe.certify.shard
        found.append(Certified(name=name, certifier=bound, recipe=table, shard=shard))
    return found


def _gallery(session: Session, table: Mapping[str, Any]) -> dict[str, Any]:
    """Training samples, and how to learn a metric of their features: ARML, the robust one."""
    train = session.whole.train.spread(table["gallery"])
    batch = train.batch(torch.arange(len(train)), session.device)
    learned = {"matrix": _arml} if table["distance"] == "mahalanobis" else {}
    return {"points": batch.x, "labels": batch.y, **learned}


def _arml(features: Tensor, labels: Tensor) -> Tensor:
    learner = learners()["arml"](random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # radii are valid for any metric
        learner.fit(features.cpu().numpy(), labels.cpu().numpy())
    root = torch.from_numpy(learner.components_)
    return root.T @ root
