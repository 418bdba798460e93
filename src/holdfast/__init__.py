"""Train classifiers whose representation holds still under attack, and show honestly whether it does."""

from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Batch, Outputs, Rows, Terms
from holdfast.geometry import L0, L1, L2, LInf, Threat
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.models.arithmetic import arithmetic
from holdfast.models.classifier import Classifier, adapt
from holdfast.rng import Rng

__all__ = [
    "ALP",
    "BIM",
    "FGSM",
    "L0",
    "L1",
    "L2",
    "MIM",
    "PGD",
    "TLA",
    "Adversarial",
    "Batch",
    "CWLinf",
    "Classifier",
    "LInf",
    "Noise",
    "Outputs",
    "Plain",
    "Rng",
    "Rows",
    "Terms",
    "Threat",
    "Transfer",
    "adapt",
    "arithmetic",
]
