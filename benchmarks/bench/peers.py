"""One small adapter per peer, all with the signature of ours: ``pgd(model, x, y, eps, step, steps) -> x_adv``.

A peer that cannot be imported here is absent, with the reason; it never stops the others.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import PGD, LInf, Rng, Threat, arithmetic
from holdfast.crafting.arithmetic import chosen, has_bfloat16

Pgd = Callable[[nn.Module, Tensor, Tensor, float, float, int], Tensor]


def ours(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
    """Our PGD at full cost: every sample takes every step."""
    with arithmetic("float32"):
        return _pgd(eps, step, steps, "last")(model, x, y, rng=Rng(0))


def ours_fast(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
    """The same in bfloat16."""
    with arithmetic("bfloat16"):
        return _pgd(eps, step, steps, "last")(model, x, y, rng=Rng(0))


def ours_leaving(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
    """Our PGD as evaluation runs it: a sample leaves as soon as it is fooled."""
    return _pgd(eps, step, steps, "fooled")(model, x, y, rng=Rng(0))


OURS: Mapping[str, tuple[torch.dtype, Pgd]] = {"holdfast": (torch.float32, ours)}
"""Our contestants and their arithmetic; bfloat16 takes part where the hardware has it."""
if has_bfloat16(torch.device("cpu")):
    OURS = {**OURS, "holdfast, bfloat16": (torch.bfloat16, ours_fast)}


def dtypes() -> str:
    """The arithmetic of our contestants."""
    return ", ".join(str(dtype).removeprefix("torch.") for dtype, _ in OURS.values())


def usual() -> str:
    """The arithmetic that crafting chooses here when it is not told."""
    return str(chosen(torch.device("cpu"))).removeprefix("torch.")


def _pgd(eps: float, step: float, steps: int, keep: str) -> PGD:
    return PGD(threat=Threat(LInf(), eps), steps=steps, step=step, keep=keep)  # type: ignore[arg-type]


def _torchattacks() -> Pgd:
    import torchattacks

    def pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
        return torchattacks.PGD(model, eps=eps, alpha=step, steps=steps)(x, y)

    return pgd


def _foolbox() -> Pgd:
    import foolbox

    def pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
        subject = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
        # run, not call: calling it would look once more at what it returns, one forward pass that we do not charge
        return foolbox.attacks.LinfPGD(abs_stepsize=step, steps=steps).run(subject, x, y, epsilon=eps)

    return pgd


def _art() -> Pgd:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    def pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
        subject = PyTorchClassifier(
            model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), _classes(model, x), clip_values=(0, 1), device_type="cpu"
        )
        attack = ProjectedGradientDescentPyTorch(
            subject, np.inf, eps, step, max_iter=steps, num_random_init=1, batch_size=len(x), verbose=False
        )
        return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    return pgd


@torch.no_grad()
def _classes(model: nn.Module, x: Tensor) -> int:
    return int(model.eval()(x[:1]).shape[1])


def _pyautoattack() -> Pgd:
    from pyautoattack.autopgd_base import APGDAttack

    def pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
        attack = APGDAttack(model, n_iter=steps, eps=eps, loss="ce")
        attack.init_hyperparam(x)
        return attack.attack_single_run(x, y)[3]  # perturb() would leave out what is misclassified clean

    return pgd


def _adv_lib() -> Pgd:
    with _stand_ins("visdom", "torchvision", "torchvision.models"):
        from adv_lib.attacks.projected_gradient_descent import pgd_linf

    def pgd(model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> Tensor:
        return pgd_linf(model, x, y, eps, steps=steps, absolute_step_size=step)

    return pgd


@contextmanager
def _stand_ins(*names: str) -> Iterator[None]:
    """Empty modules under these names, for an import that wants them and never uses them in what we call."""
    before = {name: sys.modules.get(name) for name in names}
    for name in names:
        sys.modules[name] = ModuleType(name)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


@dataclass(frozen=True)
class Peer:
    """A library to be timed beside ours, and the point it keeps; ``best`` is APGD's, another algorithm."""

    package: str
    open: Callable[[], Pgd]
    keeps: Literal["last", "fooled", "best"] = "last"
    note: str = ""


PEERS: Mapping[str, Peer] = {
    "torchattacks": Peer("torchattacks", _torchattacks),
    "foolbox": Peer("foolbox", _foolbox),
    "ART": Peer("adversarial-robustness-toolbox", _art, note="also predicts before and after, for its log"),
    "adv-lib": Peer("adv-lib", _adv_lib, "fooled", "imported with empty visdom and torchvision"),
    "pyautoattack": Peer("pyautoattack", _pyautoattack, "best", "APGD: it has no PGD"),
}

SAME = {name for name, peer in PEERS.items() if peer.keeps != "best"}


@dataclass(frozen=True)
class Field:
    """Who takes part: the peers that can be used, and why the others cannot."""

    present: Mapping[str, Pgd]
    absent: Mapping[str, str]

    def facts(self) -> dict[str, dict[str, str]]:
        """For the records."""
        known = {name: f"{_version(PEERS[name].package)}; {PEERS[name].note}".rstrip("; ") for name in self.present}
        return {"peers": known, "absent": dict(self.absent)}


@cache
def field() -> Field:
    """The peers that can be imported here."""
    present: dict[str, Pgd] = {}
    absent: dict[str, str] = {}
    for name, peer in PEERS.items():
        try:
            present[name] = peer.open()
        except Exception as error:  # a broken installation raises anything, torchvision a RuntimeError
            absent[name] = said(error)
    return Field(present, absent)


def said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


class Counted(nn.Module):
    """A model that counts the samples that pass through it, forwards and backwards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self._back)
        return logits

    def _back(self, grad: Tensor) -> None:
        self.backwards += len(grad)


def passes(pgd: Pgd, model: nn.Module, x: Tensor, y: Tensor, eps: float, step: float, steps: int) -> dict[str, float]:
    """Forward and backward passes per sample of one call."""
    counted = Counted(model).eval()
    pgd(counted, x, y, eps, step, steps)
    return {"forwards": counted.forwards / len(x), "backwards": counted.backwards / len(x)}
