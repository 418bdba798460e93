"""The training loop, which resumes with bit-identical results, and a rehearsal of its first step."""

import json
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from math import isfinite
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from holdfast.analysis.head import easy_share
from holdfast.contracts import Cost, Method, Terms
from holdfast.crafting import Mode
from holdfast.crafting.arithmetic import Arithmetic
from holdfast.data import DataSet, EvaluationSet, Split
from holdfast.evaluation.checks import check_model
from holdfast.evaluation.choose import crafting_with, stored_arithmetic
from holdfast.evaluation.judge import accuracy
from holdfast.models.own import Own, bare
from holdfast.recipes.assemble import build_model
from holdfast.recipes.tables.model import ModelConfig
from holdfast.records import snapshot
from holdfast.records.files import write_text
from holdfast.records.provenance import distinct, maker
from holdfast.rng import Rng
from holdfast.training import checkpoint
from holdfast.training.averages import Average
from holdfast.training.batches import Batches
from holdfast.training.checkpoint import generators, set_generators
from holdfast.training.job import Job
from holdfast.training.optimizer import build_optimizer, check_schedule, scheduled
from holdfast.training.precision import Precision, check_precision

LOGS_PER_EPOCH = 10
SAVE_EVERY = 500  # steps between checkpoints; each epoch ends with one anyway


Tick = Callable[[int, int, str], None]
"""Called with (steps done, total steps, a short message) after every step."""


class Trainer:
    """The model, the method, the optimizer and the batches of a job."""

    def __init__(self, job: Job, data: DataSet, fabric: Fabric) -> None:
        config = job.entry.train
        self.job, self.rng = job, Rng(job.seed)
        self.crafted: dict[str, str] = {}  # how attacks craft, set when training starts
        self.method = deepcopy(job.entry.method)  # its parameters must not be shared between runs
        self.net = job.build(data)
        _check_features(self.method, self.net)
        self.batches = Batches(data.train, config.batch, self.method.needs, job.seed, fabric.device, config.augment)
        self.steps = self.batches.order.steps
        self.total = config.epochs * self.steps
        if not job.done:
            check_schedule(config, self.steps)
            check_precision(config, fabric.device)
        if isinstance(self.method, nn.Module):
            fabric.to_device(self.method)
        self.torch_optimizer = build_optimizer(config.optimizer, self.net, self.method)
        self.precision = Precision(config, self.net, self.method, fabric.device)
        self.model, self.optimizer = fabric.setup(self.precision.model, self.torch_optimizer)
        self.model.mark_forward_method("outputs")

    def start(self, weights: snapshot.Tensors | None = None) -> None:
        """Load the initial weights: from the file that the job names, or from ``weights`` if it does not exist yet."""
        path = self.job.init_from
        if path is not None:
            snapshot.load_weights(bare(self.net), snapshot.read(path)[0] if weights is None else weights, path)

    def seed(self) -> None:
        """Seed torch's global generator, which e.g. dropout uses."""
        torch.manual_seed(self.rng.fork("torch").seed)

    def terms(self, step: int, which: Tensor) -> Terms:
        """The loss terms of the method in this step, on these samples."""
        self.model.train()
        batch = self.batches.batch(step, which)
        compute = partial(self.method, self.model, batch, progress=step / self.total, rng=self.rng.fork(step))
        return self.precision.terms(step, compute)


def rehearse(job: Job, data: DataSet, fabric: Fabric, start: ModelConfig | None = None) -> None:
    """Compute the loss of a job's first step on a temporary model and raise if that fails; nothing is written.

    Bad settings are thus refused before any model is trained. ``start`` is the model whose weights the job starts from,
    if that model is not trained yet: the shapes must match.
    """
    with torch.random.fork_rng(devices=[]):  # generators of other devices need no fork: training seeds them again
        trainer = Trainer(job, data, fabric)
        if job.own:
            check_model(trainer.net, EvaluationSet(data.name, data.train, None), fabric.device)
        untrained = None
        if start is not None:
            untrained = bare(build_model(start, data.shape, len(data.classes), seed=0)).state_dict()
        trainer.start(untrained)
        trainer.seed()
        which = trainer.batches.order.epoch(0)[0]
        try:
            terms = trainer.terms(0, which)
        except (ValueError, RuntimeError) as error:
            if len(which) == 1 and "more than 1 value per channel" in str(error):  # torch's message
                raise ValueError("batch norm cannot train on a batch of 1; use a batch of at least 2") from error
            raise
    if problem := nonfinite(terms, 0):
        raise ValueError(f"{problem}; change the settings of the method")


def train(
    job: Job, data: DataSet, fabric: Fabric, tick: Tick, arithmetic: Arithmetic = "auto", crafting: Mode = "auto"
) -> None:
    """Train one model, or resume where an earlier call stopped; the weights are bit-identical either way.

    ``arithmetic`` is the precision of crafting; a choice by timing is made once and stored with the model. With
    ``crafting="module"`` attacks call the model itself.
    """
    trainer = Trainer(job, data, fabric)
    trainer.start()
    job.claim(data)  # only now: a job that cannot be built must not claim the folder
    if not job.done:
        chosen = stored_arithmetic(arithmetic, fabric.device, job.folder)
        trainer.crafted = {"arithmetic": chosen, "crafting": crafting}
        with crafting_with(chosen, crafting, fabric.device, job.folder):
            _train(trainer, data, fabric, tick)


def _train(trainer: Trainer, data: DataSet, fabric: Fabric, tick: Tick) -> None:
    config, steps, total, optimizer = trainer.job.entry.train, trainer.steps, trainer.total, trainer.optimizer
    run = _State(trainer)
    run.resume()
    schedule = scheduled(config, trainer.torch_optimizer, steps, run.step)
    while not run.ended:
        epoch, done = divmod(run.step, steps)
        for which in trainer.batches.order.epoch(epoch)[done:]:
            started = time.perf_counter()
            terms = trainer.terms(run.step, which)
            if problem := nonfinite(terms, run.step):
                raise FloatingPointError(f"{problem}; try a smaller learning rate or a longer eps warm-up")
            optimizer.zero_grad(set_to_none=True)
            fabric.backward(terms.total)
            if config.clip_norm is not None:
                _clip(fabric, trainer.model, optimizer, config.clip_norm, run.step)
            optimizer.step()
            run.average.after_step()
            run.step += 1
            if run.step < total:
                schedule.step()
            run.cost = run.cost + terms.cost
            if run.step % max(1, steps // LOGS_PER_EPOCH) == 0:
                run.log("train", epoch + 1, {"loss": terms.total, **terms.parts, **easy(terms, data.train.y[which])})
            if run.step % steps == 0:
                run.cost = run.cost + run.average.after_epoch(epoch + 1)
                run.validate(data.valid, epoch + 1, fabric.device)
            run.seconds += time.perf_counter() - started
            if run.step % steps == 0 or run.step % SAVE_EVERY == 0:
                run.save()
            tick(run.step, run.step if run.ended else total, run.message)
    run.finish()


class _State:
    """The state of training, its log and its files."""

    def __init__(self, trainer: Trainer) -> None:
        self.job, self.net, self.optimizer, self.batches = trainer.job, trainer.net, trainer.optimizer, trainer.batches
        # a method that is not a module has no state
        self.method = trainer.method if isinstance(trainer.method, nn.Module) else nn.Module()
        self.step, self.seconds, self.best, self.best_epoch, self.message = 0, 0.0, -1.0, 0, ""
        self.cost, self.makers = Cost(), [maker()]
        self.average, self.precision = Average(self.job.entry.train, self.net, self.batches), trainer.precision
        self.lines: list[str] = []
        self.crafted = trainer.crafted
        trainer.seed()

    @property
    def ended(self) -> str:
        """Why training has ended, empty while it has not; depends only on what a checkpoint holds."""
        config, (epoch, done) = self.job.entry.train, divmod(self.step, self.batches.order.steps)
        if epoch >= config.epochs:
            return "epochs"
        waited = 0 if done else epoch - max(self.best_epoch, config.skipped_epochs)
        return "patience" if config.patience is not None and waited >= config.patience else ""

    @property
    def _modules(self) -> dict[str, nn.Module]:
        averaged = {} if self.average.model is None else {"average": self.average.model}
        return {"model": self.net, "method": self.method, **averaged}

    def resume(self) -> None:
        """Load the last checkpoint, if there is one; log lines after it are dropped."""
        path = self.job.folder / "checkpoint.safetensors"
        if path.is_file():
            tensors, facts = snapshot.read(path)
            if not facts:
                raise ValueError(f"{path} is not a checkpoint of holdfast; delete it and run again")
            for name, module in self._modules.items():
                snapshot.load_weights(module, checkpoint.under(name, tensors), path)
            checkpoint.restore_optimizer(self.optimizer, checkpoint.under("optimizer", tensors))
            self.batches.restore(checkpoint.under("sampler", tensors))
            set_generators(checkpoint.under("generator", tensors))
            self.step, self.seconds = facts["step"], facts["seconds"]
            self.best, self.best_epoch, self.message = facts["best"], facts["best_epoch"], facts.get("message", "")
            self.lines, self.cost = facts["lines"], Cost(**facts["cost"])
            self.precision.fall_back(facts["float32_from"])
            self.makers = distinct([*facts.get("made", []), *self.makers])
        write_text(self.job.folder / "metrics.jsonl", "".join(self.lines))

    def save(self) -> None:
        tensors = checkpoint.prefixed("optimizer", checkpoint.optimizer_tensors(self.optimizer))
        for name, module in self._modules.items():
            tensors |= checkpoint.prefixed(name, module.state_dict())
        tensors |= checkpoint.prefixed("sampler", self.batches.state())
        tensors |= checkpoint.prefixed("generator", generators())
        facts = {name: getattr(self, name) for name in ("step", "seconds", "best", "best_epoch", "message", "lines")}
        facts |= {"cost": asdict(self.cost), "float32_from": self.precision.float32_from, "made": self.makers}
        snapshot.write(self.job.folder / "checkpoint.safetensors", tensors, facts)

    def log(self, split: str, epoch: int, scalars: Mapping[str, Tensor | float]) -> None:
        numbers = {name: value.item() if isinstance(value, Tensor) else value for name, value in scalars.items()}
        row = {"step": self.step, "epoch": epoch, "split": split} | numbers
        self.lines.append(json.dumps(row) + "\n")
        with (self.job.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(self.lines[-1])

    def validate(self, split: Split, epoch: int, device: torch.device) -> None:
        """Measure clean and robust accuracy on validation samples; save the weights if they are the best so far."""
        samples = split.take(torch.arange(min(len(split), self.job.entry.train.validate_samples)))
        clean, robust = accuracy(
            self.average.current, samples, self.job.validate, device, Rng(self.job.seed).fork("validate")
        )
        self.log("valid", epoch, {"clean": clean, "robust": robust})
        self.message = f"epoch {epoch}: validation {clean:.1%} clean, {robust:.1%} under attack"
        reached = robust if self.job.entry.train.select == "robust" else clean
        if reached > self.best and epoch > self.job.entry.train.skipped_epochs:
            self.best, self.best_epoch = reached, epoch
            facts = {"epoch": epoch, "robust": robust, "clean": clean, "samples": len(samples)}
            snapshot.write(self.job.folder / "best.safetensors", bare(self.average.current).state_dict(), facts)

    def finish(self) -> None:
        """Save the last weights and write trained.json, which marks the end of training."""
        folder, epochs = self.job.folder, self.step // self.batches.order.steps
        # appended lines may be lost in a power failure; this write is synced
        write_text(folder / "metrics.jsonl", "".join(self.lines))
        snapshot.write(folder / "last.safetensors", bare(self.average.current).state_dict(), {"epoch": epochs})
        if learned := self.method.state_dict():  # parameters of the method itself
            snapshot.write(folder / "method.safetensors", learned, {"epoch": epochs})
        facts = {
            "steps": self.step,
            "epochs": epochs,
            "ended": self.ended,
            "best_epoch": self.best_epoch,
            "best": self.best,
        }
        facts |= {"seconds": self.seconds, **asdict(self.cost), "made": self.makers, "crafted": self.crafted}
        if self.precision.mixed is not None:
            facts["float32_from"] = self.precision.float32_from
        digests = {name: snapshot.digest(snapshot.read(folder / f"{name}.safetensors")[0]) for name in ("best", "last")}
        write_text(folder / "trained.json", json.dumps(facts | {"weights": digests}, indent=1) + "\n")
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)


def easy(terms: Terms, y: Tensor) -> dict[str, float]:
    """The share of the gradient that the easier half of a batch holds, for the log; nothing without known logits."""
    if not terms.seen or not (logits := terms.seen[-1].logits.detach().float().cpu()).isfinite().all():
        return {}
    share = easy_share(logits.numpy(), y.cpu().numpy(), draws=0).value
    return {"easy": share} if isfinite(share) else {}


def _check_features(method: Method, net: nn.Module) -> None:
    """Refuse a method that compares features for a network without a linear layer, whose input they would be."""
    if method.needs.features and isinstance(net, Own) and not any(isinstance(m, nn.Linear) for m in net.modules()):
        raise ValueError(
            f"{type(method).__name__} compares features, which are the input of the last Linear layer, but the network "
            "has none; name the layer that gives them (layer = ... of TLA, or holdfast.adapt(network, layer) in Python)"
        )


def nonfinite(terms: Terms, step: int) -> str:
    """Describes a loss that is not finite; empty if it is finite."""
    if torch.isfinite(terms.total):
        return ""
    bad = [name for name, value in terms.parts.items() if not torch.isfinite(value)]
    return f"the loss is {terms.total.item():g} at step {step} (term {', '.join(bad) or 'total'})"


def _clip(fabric: Fabric, model: Any, optimizer: Any, max_norm: float, step: int) -> None:
    """Clip the norm of the gradient of all trained parameters, including those of the method."""
    length = fabric.clip_gradients(model, optimizer, max_norm=max_norm, error_if_nonfinite=False)
    if length is None or not torch.isfinite(length):  # raised before the step, so that the weights stay finite
        raise FloatingPointError(f"the gradient has length {length} at step {step}; try a smaller learning rate")
