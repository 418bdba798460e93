"""Train classifiers whose representation holds still under attack, and show honestly whether it does."""

from holdfast.attacks.bim import BIM
from holdfast.attacks.cw_linf import CWLinf
from holdfast.attacks.feature_norm import FeatureNorm
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.linearity import Linearity
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Batch, Outputs, Rows, Terms
from holdfast.crafting.arithmetic import arithmetic
from holdfast.geometry import L0, L1, L2, LInf, Threat
from holdfast.methods.adversarial import Adversarial
from holdfast.methods.alp import ALP
from holdfast.methods.cure import CURE
from holdfast.methods.llr import LLR
from holdfast.methods.metric import Metric
from holdfast.methods.plain import Plain
from holdfast.methods.tla import TLA
from holdfast.methods.trades import TRADES
from holdfast.methods.triplet import Triplet
from holdfast.models.classifier import Classifier, adapt
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.rng import Rng

__all__ = [
    "ALP",
    "BIM",
    "CURE",
    "FGSM",
    "L0",
    "L1",
    "L2",
    "LLR",
    "MIM",
    "PGD",
    "TLA",
    "TRADES",
    "Adversarial",
    "Batch",
    "CWLinf",
    "Classifier",
    "FeatureNorm",
    "Hypersphere",
    "LInf",
    "Linearity",
    "Metric",
    "Noise",
    "Outputs",
    "Plain",
    "Rng",
    "Rows",
    "Terms",
    "Threat",
    "Transfer",
    "Triplet",
    "adapt",
    "arithmetic",
]
