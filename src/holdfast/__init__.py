"""Train classifiers that resist adversarial perturbations, and measure how well they do.

``holdfast.evaluate(model, x, y, threat="linf:8/255")`` attacks a model and prints what holds.

All attacks and methods are names of this module: ``holdfast.PGD`` is the class in ``holdfast/attacks/pgd.py``. They
are found by file name and imported on first use, so a new file needs no entry here.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from holdfast import members
from holdfast.contracts import Batch as Batch
from holdfast.contracts import Outputs as Outputs
from holdfast.contracts import Rows as Rows
from holdfast.contracts import Terms as Terms
from holdfast.crafting.arithmetic import arithmetic as arithmetic
from holdfast.geometry import L0 as L0
from holdfast.geometry import L1 as L1
from holdfast.geometry import L2 as L2
from holdfast.geometry import LInf as LInf
from holdfast.geometry import Threat as Threat
from holdfast.losses.detection import Evasion as Evasion
from holdfast.models.classifier import Classifier as Classifier
from holdfast.models.classifier import adapt as adapt
from holdfast.models.detector import Abstaining as Abstaining
from holdfast.models.detector import Detector as Detector
from holdfast.models.heads.hypersphere import Hypersphere as Hypersphere
from holdfast.rng import Rng as Rng

if TYPE_CHECKING:  # gives type checkers the exact types; a name that is not listed here is of type Any to them
    from holdfast.api import analyze as analyze
    from holdfast.api import evaluate as evaluate
    from holdfast.api import judge as judge
    from holdfast.attacks.bim import BIM as BIM
    from holdfast.attacks.cw_linf import CWLinf as CWLinf
    from holdfast.attacks.eot import EOT as EOT
    from holdfast.attacks.feature_norm import FeatureNorm as FeatureNorm
    from holdfast.attacks.fgsm import FGSM as FGSM
    from holdfast.attacks.latent import Latent as Latent
    from holdfast.attacks.linearity import Linearity as Linearity
    from holdfast.attacks.mim import MIM as MIM
    from holdfast.attacks.noise import Noise as Noise
    from holdfast.attacks.pgd import PGD as PGD
    from holdfast.attacks.transfer import Transfer as Transfer
    from holdfast.methods.adversarial import Adversarial as Adversarial
    from holdfast.methods.alp import ALP as ALP
    from holdfast.methods.cure import CURE as CURE
    from holdfast.methods.llr import LLR as LLR
    from holdfast.methods.metric import Metric as Metric
    from holdfast.methods.plain import Plain as Plain
    from holdfast.methods.tla import TLA as TLA
    from holdfast.methods.trades import TRADES as TRADES
    from holdfast.methods.triplet import Triplet as Triplet
    from holdfast.report.analysis_result import Analyzed as Analyzed
    from holdfast.report.result import Result as Result
    from holdfast.training.fit import batches as batches
    from holdfast.training.fit import fit as fit
    from holdfast.training.fitted import Fitted as Fitted
    from holdfast.zoo import load_model as load_model


_API = (
    "Analyzed",
    "Fitted",
    "Result",
    "analyze",
    "batches",
    "evaluate",
    "fit",
    "judge",
)  # of holdfast.api, which needs more than torch


def __getattr__(name: str) -> Any:
    """Import a call of the api, an attack or a method on first use; ``__all__`` imports all of them."""
    if name == "__all__":
        return _public()
    if name == "__version__":
        return version("holdfast")
    if name == "load_model":
        return import_module(f"{__name__}.zoo").load_model
    if name in _API:
        return getattr(import_module(f"{__name__}.api"), name)
    for folder, file in _files():
        if file.replace("_", "") == name.lower():  # the class is named like its file
            found = members.member(folder, file)
            if found.__name__ == name:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_public()})


def _files() -> list[tuple[Any, str]]:
    folders = [import_module(f"{__name__}.{name}") for name in ("attacks", "methods")]
    return [(folder, file) for folder in folders for file in members.names(folder)]


def _public() -> list[str]:
    """The names imported above from the package, and the attacks and methods."""
    above = {name for name, it in globals().items() if getattr(it, "__module__", "").startswith(f"{__name__}.")}
    return sorted(above | {*_API, "load_model"} | {members.member(folder, file).__name__ for folder, file in _files()})
