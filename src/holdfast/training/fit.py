"""Training from Python: the loop of recipes on a user's own network, and the batches for a user's own loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

from holdfast.contracts import Batch, Method, Needs
from holdfast.crafting import Mode, using
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.crafting.arithmetic import arithmetic as crafting_in
from holdfast.data import DataSet, EvaluationSet, load
from holdfast.data.from_torch import in_order
from holdfast.data.split import split_train
from holdfast.evaluation.given import check_labels_apart, device_of, samples_of, seed_of, threats_of
from holdfast.geometry import Threat
from holdfast.models.imported import naming_errors, seeded
from holdfast.progress import Progress
from holdfast.recipes.build import build
from holdfast.recipes.schema import Entry, read_entry
from holdfast.recipes.short import CRAFT, EPOCHS, attack_name, settings_table
from holdfast.recipes.tables.attack import read_validation
from holdfast.recipes.tables.train import TrainConfig
from holdfast.records import snapshot
from holdfast.records.files import read_json, read_lines
from holdfast.rng import Rng
from holdfast.settings import path_of
from holdfast.statistics import Share
from holdfast.training.batches import Batches
from holdfast.training.fitted import Fitted
from holdfast.training.job import Job
from holdfast.training.loop import rehearse
from holdfast.training.loop import train as run

_NONE: Mapping[str, Any] = MappingProxyType({})
_VALID_SEED = 0  # of the split into training and validation samples, as in recipes


def fit(
    model: nn.Module | Callable[[], nn.Module],
    x: Any,
    y: Any = None,
    *,
    threat: Threat | str,
    method: str | Method = "adversarial",
    epochs: int = EPOCHS,
    craft: str = CRAFT,
    train: Mapping[str, Any] = _NONE,
    valid: float | int = 0.1,
    rng: int | Rng = 0,
    out: str | Path | None = None,
    arithmetic: Arithmetic = "auto",
    crafting: Mode = "auto",
    progress: bool = True,
) -> Fitted:
    """Train a network with a method of holdfast: ``fit(model, x, y, method="tla", threat="linf:8/255", epochs=10)``.

    ``model`` is an ``nn.Module`` that returns logits, which is trained on the device it is on, from the weights it has;
    or a class or function without arguments that makes one, from ``rng``. Its features are the input of the last Linear
    layer. ``x`` and ``y`` are training samples and labels; in place of both ``x`` may be a Dataset or DataLoader of
    pairs, or the name of a data set. Samples are read once: augmentation belongs into ``train``.

    ``method`` is the name of a method with its settings (``"tla:lambda1=2,margin=0.03"``) or a method; ``craft`` is the
    attack in training, at ``threat``. ``train`` holds keys of the table [train] of recipes, such as ``{"batch": 128,
    "optimizer": {"name": "sgd", "lr": 0.1}, "augment": {"flip": {}}}``. The share or number ``valid`` of the samples is
    held out; the epoch with the highest accuracy under PGD on them is kept, or without attack if ``train`` has
    ``"select": "clean"``.

    With a folder ``out``, weights and log are stored there, and the same call continues after an interruption, with the
    same bits. ``arithmetic`` and ``crafting`` are described in :mod:`holdfast.crafting`. Training is that of
    ``holdfast train --model``. At the end ``model`` itself has the weights that were kept; see :class:`Fitted`.
    """
    (allowed, *more), seed = threats_of(threat), seed_of(rng)
    if more:
        raise ValueError(f"training is at one threat but {len(more) + 1} are given")
    if not isinstance(train, Mapping):
        raise ValueError(
            f"train is a {type(train).__name__} but must be keys of the table [train], e.g. {{'batch': 128}}"
        )
    into = None if out is None else path_of(out, "out")
    size = {"batch": x.batch_size} if isinstance(x, DataLoader) and x.batch_size else {}
    entry = _entry(method, {"epochs": epochs, **size, **train}, craft, allowed)
    data, network = _data(x, y, valid, allowed), _network(model, seed)
    name = method if isinstance(method, str) else type(method).__name__
    with ExitStack() as stack:
        bars = stack.enter_context(Progress(shown=progress))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-")) if into is None else into)
        validate = read_validation({}, allowed)
        job = Job(entry=entry, model=None, validate=validate, seed=seed, folder=folder, network=network)
        _train(job, data, partial(bars.report, f"train {name}"), arithmetic, crafting)
        tensors, best = snapshot.read(folder / "best.safetensors")
        snapshot.load_weights(network, tensors, folder / "best.safetensors")
        return Fitted(
            model=network.eval(),
            method=name,
            attack=attack_name(validate),
            epoch=best["epoch"],
            clean=Share(round(best["clean"] * best["samples"]), best["samples"]),
            robust=Share(round(best["robust"] * best["samples"]), best["samples"]),
            history=read_lines(folder / "metrics.jsonl"),
            facts=read_json(folder / "trained.json"),
            out=into,
        )


class Step(NamedTuple):
    """A step of training: its batch, the share of training that is done, and its random numbers."""

    batch: Batch
    progress: float
    rng: Rng


def batches(
    x: Any,
    y: Any = None,
    *,
    needs: Method | Needs,
    epochs: int,
    batch: int = 50,
    augment: Mapping[str, Any] = _NONE,
    rng: int | Rng = 0,
    device: str | torch.device = "cpu",
) -> Iterator[Step]:
    """The batches of a training loop of your own, with the positives and the pool that a method needs.

    >>> for batch, progress, rng in batches(x, y, needs=method, epochs=10):     # doctest: +SKIP
    ...     loss = method(model, batch, progress=progress, rng=rng).total

    ``x`` and ``y`` are those of :func:`fit`; nothing is held out of them, except that a data set by its name has
    validation samples. ``augment`` is the key of that name of the table [train] of recipes. The batches are those of
    :func:`fit` on the same training samples with the same seed.
    """
    seed, given = seed_of(rng), _given(x, y)
    split = given.train if isinstance(given, DataSet) else given.test
    config = cast(TrainConfig, build(TrainConfig, {"epochs": epochs, "batch": batch, "augment": augment}, "batches"))
    made = Batches(split, config.batch, _needs(needs), seed, _device(device), config.augment)
    return _steps(made, config.epochs, Rng(seed))


def _device(given: str | torch.device) -> torch.device:
    try:
        return torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {given!r} but must be one that torch knows, e.g. 'cpu' or 'cuda'") from error


def _steps(made: Batches, epochs: int, rng: Rng) -> Iterator[Step]:
    total = epochs * made.order.steps
    for step in range(total):
        epoch, number = divmod(step, made.order.steps)
        yield Step(made.batch(step, made.order.epoch(epoch)[number]), step / total, rng.fork(step))


def _entry(method: str | Method, train: Mapping[str, Any], craft: str, threat: Threat) -> Entry:
    """A method with the settings of its training."""
    if isinstance(method, str):
        if not isinstance(craft, str):
            raise ValueError(
                f"craft is a {type(craft).__name__} but must be a text such as 'pgd:steps=10'; give an attack "
                "object in a method object, e.g. method=Adversarial(attack=...)"
            )
        table = {"craft": settings_table(craft, "craft"), "train": train}
        return read_entry(table, "method", settings_table(method, f"method {method!r}"), threat)
    _needs(method)
    return Entry(method=method, train=cast(TrainConfig, build(TrainConfig, train, "train")))


def _needs(given: Any) -> Needs:
    """What a method needs; anything else is refused."""
    needs = given if isinstance(given, Needs) else getattr(given, "needs", None)
    if not isinstance(needs, Needs):
        raise ValueError(f"method is {given!r} but must be a name of `holdfast list methods`, or a method such as TLA")
    return needs


def _data(x: Any, y: Any, valid: float | int, threat: Threat) -> DataSet:
    """Training samples with some of them held out for validation; there are no test samples."""
    given = _given(x, y, valid, (threat,))
    if isinstance(given, DataSet):
        return given
    train, held = split_train(given.test, valid, _VALID_SEED)
    classes = given.classes or tuple(map(str, range(int(given.test.y.max()) + 1)))
    return DataSet(given.name, train, held, held, classes)


def _given(x: Any, y: Any, valid: float | int = 0.1, threats: Sequence[Threat] = ()) -> DataSet | EvaluationSet:
    """A data set with its parts, or all samples that were given."""
    check_labels_apart(x, y)
    if isinstance(x, str):
        return load(x, valid=valid, seed=_VALID_SEED)
    return x if isinstance(x, DataSet) else samples_of(in_order(x), y, None, threats)


def _network(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    made: object = model
    if callable(model) and not isinstance(model, nn.Module):
        with naming_errors(f"making a model by {getattr(model, '__name__', 'the function')}()"):
            made = seeded(model, seed)
    if not isinstance(made, nn.Module):
        raise ValueError(f"the model is a {type(made).__name__} but a torch.nn.Module, or what makes one, is trained")
    return made


def _train(job: Job, data: DataSet, tick: Callable[..., None], arithmetic: Arithmetic, crafting: Mode) -> None:
    """Train a copy of the network of a job; the states of torch's generators are restored."""
    device = device_of(job.network)
    fabric = Fabric(accelerator=device.type, devices=1 if device.index is None else [device.index])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if job.done:
            job.check_crafted(arithmetic, crafting)
        else:
            with crafting_in(arithmetic), using(crafting):
                rehearse(job, data, fabric)
        run(job, data, fabric, tick, arithmetic, crafting)
