"""The models that are attacked and the data they see: trained here once with holdfast's own loop, then kept."""

import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from bench.budgets import Budget, Sizes
from bench.peers import Field, said
from holdfast import PGD, Adversarial, LInf, Plain, Threat, data
from holdfast.contracts import Method
from holdfast.data import DataSet, Split
from holdfast.recipes.assemble import build_model
from holdfast.recipes.schema import Entry
from holdfast.recipes.tables.model import HeadConfig, ModelConfig
from holdfast.recipes.tables.train import ScheduleConfig, TrainConfig
from holdfast.records import snapshot
from holdfast.training.job import Job
from holdfast.training.loop import train

WARMUP = 0.35


@dataclass(frozen=True)
class Subject:
    """A network, the threat it is trained against, the crafting steps that adversarial training has on such data in
    Mao et al. 2019, and the data sets to look for, the best first.
    """

    name: str
    encoder: str
    eps: float
    published: int
    shape: tuple[int, ...]
    sources: tuple[str, ...]

    @property
    def threat(self) -> Threat:
        """What the adversary may do."""
        return Threat(LInf(), self.eps)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("mlp", "mlp", 0.3, 40, (1, 28, 28), ("mnist", "digits")),
        Subject("lenet", "lenet", 0.1, 40, (1, 28, 28), ("mnist", "digits")),
        Subject("conv", "convnet", 8 / 255, 7, (3, 32, 32), ("cifar10", "fashion-mnist", "digits")),
    )
}


@dataclass(frozen=True)
class Bench:
    """What every figure is given: the budget, where models are kept, and who takes part."""

    budget: Budget
    models: Path
    field: Field

    def sizes(self, name: str) -> Sizes:
        """What a subject is given."""
        return self.budget.sizes[name]

    def robust(self, name: str) -> nn.Module:
        """The adversarially trained model of a subject, frozen."""
        sizes, subject = self.sizes(name), SUBJECTS[name]
        step = 2.5 * subject.eps / sizes.craft_steps
        attack = PGD(threat=subject.threat, steps=sizes.craft_steps, step=step, keep="last")
        method = Adversarial(attack=attack, warmup=WARMUP)
        return self.trained(name, method, samples=sizes.train, epochs=sizes.epochs)

    def undefended(self, name: str) -> nn.Module:
        """The model of a subject trained on clean samples, frozen."""
        return self.trained(name, Plain(), samples=self.sizes(name).plain, epochs=1)

    def trained(self, name: str, method: Method, *, samples: int, epochs: int, seed: int = 0) -> nn.Module:
        """A model from its file, trained first where there is none; the file's name tells all its settings apart."""
        subject = SUBJECTS[name]
        some = dataset(subject.sources, subject.shape)
        some = replace(some, train=first(some.train, samples))
        config = TrainConfig(epochs=epochs, batch=50, schedule=ScheduleConfig(name="cosine"), validate_samples=200)
        entry = Entry(method=method, train=config)
        validate = PGD(threat=subject.threat, steps=2)
        job = Job(
            entry=entry, model=ModelConfig(encoder=subject.encoder), validate=validate, seed=seed, folder=self.models
        )
        key = sha256(json.dumps(job.table(some), sort_keys=True, default=str).encode()).hexdigest()[:12]
        kind = type(method).__name__.lower()
        job = replace(job, folder=self.models / f"{name}-{some.name}-{kind}-seed{seed}-{key}")
        train(job, some, Fabric(accelerator="cpu", devices=1), lambda done, total, said: None)
        model = build_model(job.model, some.shape, len(some.classes), seed)
        path = job.folder / "last.safetensors"
        snapshot.load_weights(model, snapshot.read(path)[0], path)
        # frozen: peers that call backward() would else pay for gradients of weights, which nobody needs
        return model.eval().requires_grad_(False)

    def samples(self, name: str, n: int) -> tuple[Tensor, Tensor]:
        """The first n test samples of a subject."""
        subject = SUBJECTS[name]
        batch = first(dataset(subject.sources, subject.shape).test, n)
        return batch.batch(torch.arange(len(batch))).x, batch.y

    def data_name(self, name: str) -> str:
        """The data set that a subject is trained on here."""
        subject = SUBJECTS[name]
        return dataset(subject.sources, subject.shape).name


def first(split: Split, n: int) -> Split:
    """The first n samples, or all of them."""
    return split.take(torch.arange(min(n, len(split))))


@cache
def dataset(sources: tuple[str, ...], shape: tuple[int, ...]) -> DataSet:
    """The first of these data sets that is here, its images made to have this shape."""
    for name in sources[:-1]:
        try:
            return fitted(data.load(name, valid=500), shape)
        except (FileNotFoundError, ValueError) as error:  # no such files, or no such reader
            print(f"{name} is not used: {said(error)}", file=sys.stderr)
    return fitted(data.load(sources[-1], valid=0.2), shape)


def fitted(found: DataSet, shape: tuple[int, ...]) -> DataSet:
    """A data set of images of another shape; what a pass costs must not depend on which data are here."""
    if found.shape == shape:
        return found
    parts = {part: getattr(found, part) for part in ("train", "valid", "test")}
    return replace(found, **{part: replace(split, x=_fit(split.x, shape)) for part, split in parts.items()})


def _fit(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    channels, height, wide = shape
    room = height - x.shape[2]
    x = F.pad(x, [room // 2] * 4) if 0 <= room <= 4 else F.interpolate(x, size=(height, wide), mode="nearest")
    return x.expand(-1, channels, -1, -1).contiguous()


def fresh(name: str, seed: int = 0, head: str = "linear") -> nn.Module:
    """An untrained model of a subject, in train mode."""
    subject = SUBJECTS[name]
    classes = len(dataset(subject.sources, subject.shape).classes)
    config = ModelConfig(encoder=subject.encoder, head=HeadConfig(name=head))
    return build_model(config, subject.shape, classes, seed)
