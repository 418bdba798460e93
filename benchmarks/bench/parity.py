"""Every attack that a peer has, as ours and as theirs, at equal steps: what benchmarks/strength.py is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.peers import _stand_ins
from holdfast import Rng, Rows, Threat
from holdfast.attacks.apgd import APGD
from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_l2 import CWL2
from holdfast.attacks.cw_linf_original import CWLinfOriginal
from holdfast.attacks.ddn import DDN
from holdfast.attacks.deepfool import DeepFool
from holdfast.attacks.fab import FAB
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.fmn import FMN
from holdfast.attacks.jsma import JSMA
from holdfast.attacks.mim import MIM
from holdfast.attacks.pgd import PGD
from holdfast.attacks.square import Square
from holdfast.evaluation.judge import judge
from holdfast.geometry import NORMS
from holdfast.losses.classification import cross_entropy, dlr, targeted_dlr

Craft = Callable[[nn.Module, Tensor, Tensor, float], Tensor]
"""(model, x, y, eps) -> x_adv; y holds targets where the contest is targeted."""

STEPS, QUERIES = 20, 1000
FAR = 100  # steps of minimal-norm attacks
SEARCHES, SEARCH_STEPS = 9, 100
L2 = 5.0  # times the eps in linf
PIXELS = 0.5  # share of the features that JSMA may change


@dataclass(frozen=True)
class Contest:
    """An attack: its norm, whether it is one of minimal norm or aims at a target, ours, and what the peers call it."""

    name: str
    norm: str
    make: Callable[[Threat], Any]
    theirs: Mapping[str, Callable[[Any], Craft]]
    minimal: bool = False
    targeted: bool = False

    def threat(self, eps: float, x: Tensor) -> Threat:
        """The threat in which points are judged."""
        if self.norm == "l0":
            return Threat(NORMS["l0"], int(PIXELS * x[0].numel()))
        return Threat(NORMS[self.norm], inf if self.minimal else eps * (L2 if self.norm == "l2" else 1))

    def ours(self, model: nn.Module, x: Tensor, y: Tensor, eps: float, seed: int = 0) -> Tensor:
        """Our adversarial examples."""
        threat = self.threat(eps, x)
        given = {"target": target(y)} if self.targeted else {}
        return self.make(threat)(model, x, Rows(y, torch.arange(len(y)), given), rng=Rng(seed))


@dataclass(frozen=True)
class Outcome:
    """Per sample: whether it is fooled, and the distance, infinite where it is not."""

    fooled: NDArray[np.bool_]
    distance: NDArray[np.float64]

    @property
    def median(self) -> float:
        """The median distance."""
        return float(np.median(self.distance))

    def summary(self, contest: Contest) -> str:
        """How many are fooled, and the median distance of a minimal-norm attack."""
        return f"{self.fooled.sum()}" + (f" ({self.median:.4g})" if contest.minimal else "")

    def rank(self, contest: Contest) -> float:
        """The larger, the stronger."""
        return -self.median if contest.minimal else float(self.fooled.sum())


def target(y: Tensor) -> Tensor:
    """The class after the label."""
    return (y + 1) % 10


def judged(contest: Contest, model: Any, craft: Craft) -> Outcome:
    """What an attack comes to on the samples of a model."""
    torch.manual_seed(0)
    np.random.seed(0)
    x_adv = craft(model.module, model.x, model.y, model.threat.eps).detach().float()
    threat = contest.threat(model.threat.eps, model.x)
    found = judge(model.module, model.x, x_adv.clamp(0, 1), model.y, threat, Rng(2))
    fooled = found.label == target(model.y) if contest.targeted else found.fooled
    fooled = (fooled & found.inside).numpy()
    return Outcome(fooled, np.where(fooled, found.distance.numpy(), inf))


def peers_of(contest: Contest) -> dict[str, Craft]:
    """The peers that have the attack and can be imported."""
    found = {}
    for name, make in contest.theirs.items():
        try:
            found[name] = make(library(name))
        except ImportError as error:
            print(f"{name} is not here: {error}")
    return found


@cache
def library(name: str) -> Any:
    """The module of a peer that holds its attacks."""
    if name == "torchattacks":
        import torchattacks

        return torchattacks
    if name == "foolbox":
        import foolbox

        return foolbox
    if name == "ART":
        import art.attacks.evasion
        import art.estimators.classification

        return art
    if name == "adv-lib":
        with _stand_ins("visdom", "torchvision", "torchvision.models"):
            import adv_lib.attacks

        return adv_lib.attacks
    import pyautoattack.autopgd_base
    import pyautoattack.fab_pt
    import pyautoattack.square

    return pyautoattack


def torchattack(make: Callable[[Any, nn.Module, float], Any]) -> Callable[[Any], Craft]:
    """An attack of torchattacks."""
    return lambda lib: lambda model, x, y, eps: make(lib, model, eps)(x, y)


def foolbox_of(make: Callable[[Any], Any], scale: float | None = 1.0) -> Callable[[Any], Craft]:
    """An attack of foolbox; ``scale`` multiplies eps, None is for attacks of minimal norm."""

    def opened(lib: Any) -> Craft:
        def craft(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
            subject = lib.PyTorchModel(model, bounds=(0, 1), device="cpu")
            found: Tensor = make(lib.attacks)(subject, x, y, epsilons=None if scale is None else scale * eps)[1]
            return found

        return craft

    return opened


def art_of(make: Callable[[Any, Any, float, int], Any], targeted: bool = False) -> Callable[[Any], Craft]:
    """An attack of ART, given (module of attacks, classifier, eps, samples)."""

    def opened(lib: Any) -> Craft:
        def craft(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
            classifier = lib.estimators.classification.PyTorchClassifier(
                model, nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0, 1), device_type="cpu"
            )
            labels = np.eye(10)[target(y) if targeted else y]  # without labels it would attack its own predictions
            return torch.from_numpy(make(lib.attacks.evasion, classifier, eps, len(x)).generate(x.numpy(), labels))

        return craft

    return opened


def adv_lib(make: Callable[[Any, nn.Module, Tensor, Tensor, float], Tensor]) -> Callable[[Any], Craft]:
    """An attack of adversarial-library."""
    return lambda lib: lambda model, x, y, eps: make(lib, model, x, y, eps)


def autoattack_part(make: Callable[[Any, nn.Module, float], Any]) -> Callable[[Any], Craft]:
    """A part of pyautoattack."""

    def opened(lib: Any) -> Craft:
        def craft(model: nn.Module, x: Tensor, y: Tensor, eps: float) -> Tensor:
            found = make(lib, model, eps).perturb(x, y)
            return found[1] if isinstance(found, tuple) else found

        return craft

    return opened


def step(eps: float) -> float:
    """The step of attacks with a fixed one."""
    return 2.5 * eps / STEPS


CONTESTS = (
    Contest(
        "FGSM",
        "linf",
        lambda threat: FGSM(threat=threat),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.FGSM(model, eps)),
            "foolbox": foolbox_of(lambda lib: lib.LinfFastGradientAttack()),
            "ART": art_of(lambda lib, model, eps, n: lib.FastGradientMethod(model, eps=eps, batch_size=n)),
        },
    ),
    Contest(
        "BIM",
        "linf",
        lambda threat: BIM(threat=threat, steps=STEPS, step=step(threat.eps)),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.BIM(model, eps, step(eps), STEPS)),
            "foolbox": foolbox_of(lambda lib: lib.LinfBasicIterativeAttack(rel_stepsize=2.5 / STEPS, steps=STEPS)),
            "ART": art_of(
                lambda lib, model, eps, n: lib.BasicIterativeMethod(
                    model, eps, step(eps), STEPS, batch_size=n, verbose=False
                )
            ),
        },
    ),
    Contest(
        "PGD",
        "linf",
        lambda threat: PGD(threat=threat, steps=STEPS, step=step(threat.eps), keep="fooled"),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.PGD(model, eps, step(eps), STEPS)),
            "foolbox": foolbox_of(lambda lib: lib.LinfPGD(rel_stepsize=2.5 / STEPS, steps=STEPS)),
            "ART": art_of(
                lambda lib, model, eps, n: lib.ProjectedGradientDescent(
                    model, np.inf, eps, step(eps), max_iter=STEPS, num_random_init=1, batch_size=n, verbose=False
                )
            ),
            "adv-lib": adv_lib(
                lambda lib, model, x, y, eps: lib.pgd_linf(model, x, y, eps, steps=STEPS, absolute_step_size=step(eps))
            ),
        },
    ),
    Contest(
        "PGD, l2",
        "l2",
        lambda threat: PGD(threat=threat, steps=STEPS, step=step(threat.eps), keep="fooled"),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.PGDL2(model, L2 * eps, step(L2 * eps), STEPS)),
            "foolbox": foolbox_of(lambda lib: lib.L2PGD(rel_stepsize=2.5 / STEPS, steps=STEPS), L2),
        },
    ),
    Contest(
        "MIM",
        "linf",
        lambda threat: MIM(threat=threat, steps=STEPS, step=step(threat.eps)),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.MIFGSM(model, eps, step(eps), STEPS)),
            "ART": art_of(
                lambda lib, model, eps, n: lib.MomentumIterativeMethod(
                    model, np.inf, eps, step(eps), max_iter=STEPS, batch_size=n, verbose=False
                )
            ),
        },
    ),
    Contest(
        "APGD-CE",
        "linf",
        lambda threat: APGD(threat=threat, loss=cross_entropy, steps=FAR),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.APGD(model, eps=eps, steps=FAR)),
            "adv-lib": adv_lib(
                lambda lib, model, x, y, eps: lib.apgd(model, x, y, eps, inf, n_iter=FAR, loss_function="ce")
            ),
            "pyautoattack": autoattack_part(
                lambda lib, model, eps: lib.autopgd_base.APGDAttack(model, n_iter=FAR, eps=eps, device="cpu")
            ),
        },
    ),
    Contest(
        "APGD-DLR",
        "linf",
        lambda threat: APGD(threat=threat, loss=dlr, steps=FAR),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.APGD(model, eps=eps, steps=FAR, loss="dlr")),
            "adv-lib": adv_lib(lambda lib, model, x, y, eps: lib.apgd(model, x, y, eps, inf, n_iter=FAR)),
            "pyautoattack": autoattack_part(
                lambda lib, model, eps: lib.autopgd_base.APGDAttack(
                    model, n_iter=FAR, eps=eps, loss="dlr", device="cpu"
                )
            ),
        },
    ),
    Contest(
        "APGD-T",
        "linf",
        lambda threat: APGD(threat=threat, loss=targeted_dlr, steps=STEPS, targets=9),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.APGDT(model, eps=eps, steps=STEPS)),
            "adv-lib": adv_lib(lambda lib, model, x, y, eps: lib.apgd_targeted(model, x, y, eps, inf, n_iter=STEPS)),
            "pyautoattack": autoattack_part(
                lambda lib, model, eps: lib.autopgd_base.APGDAttack_targeted(model, n_iter=STEPS, eps=eps, device="cpu")
            ),
        },
    ),
    Contest(
        "Square",
        "linf",
        lambda threat: Square(threat=threat, queries=QUERIES),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.Square(model, eps=eps, n_queries=QUERIES)),
            "ART": art_of(
                lambda lib, model, eps, n: lib.SquareAttack(
                    model, np.inf, max_iter=QUERIES, eps=eps, batch_size=n, verbose=False
                )
            ),
            "pyautoattack": autoattack_part(
                lambda lib, model, eps: lib.square.SquareAttack(model, eps=eps, n_queries=QUERIES, device="cpu")
            ),
        },
    ),
    Contest(
        "FAB",
        "linf",
        lambda threat: FAB(threat=threat, steps=STEPS),
        {
            "torchattacks": torchattack(
                lambda lib, model, eps: lib.FAB(model, eps=10.0, steps=STEPS, multi_targeted=True)
            ),
            "adv-lib": adv_lib(lambda lib, model, x, y, eps: lib.fab(model, x, y, inf, n_iter=STEPS)),
            "pyautoattack": autoattack_part(
                lambda lib, model, eps: lib.fab_pt.FABAttack_PT(
                    model, n_iter=STEPS, eps=10.0, targeted=True, device="cpu"
                )
            ),
        },
        minimal=True,
    ),
    Contest(
        "DeepFool, l2",
        "l2",
        lambda threat: DeepFool(threat=threat),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.DeepFool(model)),
            "foolbox": foolbox_of(lambda lib: lib.L2DeepFoolAttack(), None),
            "ART": art_of(lambda lib, model, eps, n: lib.DeepFool(model, 50, batch_size=n, verbose=False)),
            "adv-lib": adv_lib(lambda lib, model, x, y, eps: lib.df(model, x, y, steps=50)),
        },
        minimal=True,
    ),
    Contest(
        "DeepFool, linf",
        "linf",
        lambda threat: DeepFool(threat=threat),
        {
            "foolbox": foolbox_of(lambda lib: lib.LinfDeepFoolAttack(), None),
            "adv-lib": adv_lib(lambda lib, model, x, y, eps: lib.df(model, x, y, steps=50, norm=inf)),
        },
        minimal=True,
    ),
    Contest(
        "DDN",
        "l2",
        lambda threat: DDN(threat=threat, steps=FAR),
        {
            "foolbox": foolbox_of(lambda lib: lib.DDNAttack(steps=FAR), None),
            "adv-lib": adv_lib(lambda lib, model, x, y, eps: lib.ddn(model, x, y, steps=FAR)),
        },
        minimal=True,
    ),
    *(
        Contest(
            f"FMN, {norm}",
            norm,
            lambda threat: FMN(threat=threat, steps=FAR),
            {
                "foolbox": foolbox_of(lambda lib, name=name: getattr(lib, name)(steps=FAR), None),
                "adv-lib": adv_lib(lambda lib, model, x, y, eps, p=p: lib.fmn(model, x, y, p, steps=FAR)),
            },
            minimal=True,
        )
        for norm, name, p in (("l2", "L2FMNAttack", 2), ("linf", "LInfFMNAttack", inf), ("l1", "L1FMNAttack", 1))
    ),
    Contest(
        "C&W, l2",
        "l2",
        lambda threat: CWL2(threat=threat, steps=SEARCH_STEPS, searches=SEARCHES),
        {
            "torchattacks": torchattack(lambda lib, model, eps: lib.CW(model, steps=SEARCHES * SEARCH_STEPS)),
            "foolbox": foolbox_of(
                lambda lib: lib.L2CarliniWagnerAttack(binary_search_steps=SEARCHES, steps=SEARCH_STEPS), None
            ),
            "adv-lib": adv_lib(
                lambda lib, model, x, y, eps: lib.carlini_wagner_l2(
                    model, x, y, binary_search_steps=SEARCHES, max_iterations=SEARCH_STEPS
                )
            ),
        },
        minimal=True,
    ),
    Contest(
        "C&W, linf",
        "linf",
        lambda threat: CWLinfOriginal(threat=threat, steps=SEARCH_STEPS, rate=0.01),
        {
            "adv-lib": adv_lib(
                lambda lib, model, x, y, eps: lib.carlini_wagner_linf(model, x, y, max_iterations=SEARCH_STEPS)
            ),
        },
        minimal=True,
    ),
    Contest(
        "JSMA",
        "l0",
        lambda threat: JSMA(threat=threat, targeted=True, saliency="relative"),
        {
            "ART": art_of(
                lambda lib, model, eps, n: lib.SaliencyMapMethod(model, 1.0, PIXELS, batch_size=n, verbose=False), True
            ),
        },
        targeted=True,
    ),
)
