"""The operations of networks that can be bounded."""

from holdfast.certify._bounds.activations import LeakyReLU, MaxPool, Softplus
from holdfast.certify._bounds.affine import Add, Average, Convolution, Cosines, Linear, Scale

Affine = Linear | Convolution | Scale | Average
Activation = LeakyReLU | Softplus
Operation = Affine | Activation | MaxPool | Add

__all__ = [
    "Activation",
    "Add",
    "Affine",
    "Average",
    "Convolution",
    "Cosines",
    "LeakyReLU",
    "Linear",
    "MaxPool",
    "Operation",
    "Scale",
    "Softplus",
]
