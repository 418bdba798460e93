"""A rehearsal: computes the first loss of a job, so that bad settings are refused before any model is trained."""

import torch
from lightning_fabric import Fabric

from holdfast.contracts import Terms
from holdfast.data import DataSet
from holdfast.recipes.assemble import build_model
from holdfast.recipes.model import ModelConfig
from holdfast.records.snapshot import Tensors
from holdfast.training.job import Job
from holdfast.training.loop import Trainer, nonfinite


def rehearse(job: Job, data: DataSet, fabric: Fabric, start: ModelConfig | None = None) -> None:
    """Compute the loss of a job's first step on a temporary model and raise if that fails; nothing is written.

    ``start`` is the model whose weights the job starts from, if that model is not trained yet: the shapes must match.
    """
    with torch.random.fork_rng(devices=[]):  # generators of other devices need no fork: training seeds them again
        trainer = Trainer(job, data, fabric)
        trainer.start(None if start is None else _untrained(start, data))
        trainer.seed()
        terms = _first(trainer)
    if problem := nonfinite(terms, 0):
        raise ValueError(f"{problem}; change the settings of the method")


def _untrained(config: ModelConfig, data: DataSet) -> Tensors:
    return build_model(config, data.shape, len(data.classes), seed=0).state_dict()


def _first(trainer: Trainer) -> Terms:
    which = trainer.batches.order.epoch(0)[0]
    try:
        return trainer.terms(0, which)
    except ValueError as error:
        if len(which) == 1 and "more than 1 value per channel" in str(error):  # torch's message
            raise ValueError("batch norm cannot train on a batch of 1; use a batch of at least 2") from error
        raise
