"""A rehearsal: what a method cannot do is said before an hour has gone into the methods before it."""

from copy import deepcopy

import torch

from holdfast.data import DataSet
from holdfast.rng import Rng
from holdfast.run.assemble import Batches, build_model
from holdfast.run.train import Job

_FEW = 8  # samples


def rehearse(job: Job, data: DataSet, device: torch.device) -> None:
    """One loss of a job on a few samples with a fresh model, which is thrown away; nothing is written."""
    plan, method = job.entry.train, deepcopy(job.entry.method)
    batches = Batches(data.train, plan.batch, method.needs, job.seed, device, plan.augment)
    net = build_model(job.model, data.shape, len(data.classes), job.seed).to(device)
    if isinstance(method, torch.nn.Module):
        method.to(device)
    few = batches.order.epoch(0)[0][:_FEW]
    with torch.random.fork_rng(devices=[]):  # a model may draw from torch's own generator
        method(net, batches.batch(0, few), progress=0.0, rng=Rng(job.seed))
