"""Metric learners and a K-nearest-neighbor classifier as scikit-learn estimators, computed with torch."""

from holdfast.learners.arml import ARML
from holdfast.learners.euclidean import Euclidean
from holdfast.learners.itml import ITML
from holdfast.learners.lmnn import LMNN
from holdfast.learners.mahalanobis_knn import MahalanobisKNN
from holdfast.learners.nca import NCA

__all__ = ["ARML", "ITML", "LMNN", "NCA", "Euclidean", "MahalanobisKNN"]
