"""Parameter names of published checkpoints, mapped to those of holdfast's classifiers."""

import re
from collections.abc import Mapping
from math import isqrt

import torch
from torch import Tensor, nn

from holdfast.models.classifier import Classifier, Normalize, PerImage
from holdfast.models.encoders.madry_cnn import MadryCNN
from holdfast.models.encoders.wrn import WRN
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.models.weights import bare_names, load_into, matched, some

LAYOUTS = ("trades", "he", "madry", "madry-mnist")
"""The layouts that :func:`published` accepts."""

_TRADES_UNIT = {"bn1": "opening.0", "conv1": "body.0", "bn2": "body.1", "conv2": "body.3", "convShortcut": "shortcut"}
_TRADES_ENDS = {"conv1": "encoder.stem", "bn1": "encoder.closing.0", "fc": "head"}

_HE_MEAN, _HE_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)

_MADRY_UNIT = {
    "shared_activation/BatchNorm": "opening.0",
    "residual_only_activation/BatchNorm": "opening.0",
    "sub1/conv1": "body.0",
    "sub2/BatchNorm": "body.1",
    "sub2/conv2": "body.3",
}
_MADRY_ENDS = {"input/init_conv": "encoder.stem", "unit_last/BatchNorm": "encoder.closing.0", "logit": "head"}
_MADRY_LEAVES = {
    "DW": "weight",
    "biases": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def published(layout: str, state: Mapping[str, Tensor], shape: tuple[int, ...]) -> Classifier:
    """Build the classifier of a published checkpoint, with depth, width and classes inferred from the weights."""
    mappings = {"trades": from_trades, "he": from_he, "madry": from_madry, "madry-mnist": from_madry_mnist}
    mapped = mappings[layout](state)
    head = mapped.get("head.weight")
    if head is None or head.ndim != 2:
        raise ValueError(f"the weights have no output layer as the layout {layout!r} has; give its checkpoint")
    units = {name.split(".")[3] for name in mapped if name.startswith("encoder.stages.0.")}
    with torch.device("meta"):  # check the shapes first: a malicious file must not allocate a huge network
        matched(_empty(layout, shape, head, len(units)), mapped)
    model = _empty(layout, shape, head, len(units))
    load_into(model, mapped)
    return model


def _empty(layout: str, shape: tuple[int, ...], head: Tensor, units: int) -> Classifier:
    classes, width = head.shape
    if layout == "madry-mnist":
        return Classifier(MadryCNN(shape, width=width), nn.Linear(width, classes))
    if layout == "madry":
        encoder = WRN(shape, width=width, depth=6 * units + 4, form="madry")
        return Classifier(encoder, nn.Linear(width, classes), PerImage())
    encoder = WRN(shape, width=width, depth=6 * units + 4)
    if layout == "he":
        return Classifier(encoder, Hypersphere(width, classes), Normalize(_HE_MEAN, _HE_STD))
    return Classifier(encoder, nn.Linear(width, classes))


def from_trades(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a TRADES WideResNet for ``Classifier(WRN(shape), Linear(640, 10))``.

    ::

        conv1, bn1, fc                     encoder.stem, encoder.closing.0, head
        block<i>.layer.<j>.bn1, conv1      encoder.stages.<i-1>.<j>.opening.0, body.0
        block<i>.layer.<j>.bn2, conv2      encoder.stages.<i-1>.<j>.body.1, body.3
        block<i>.layer.<j>.convShortcut    encoder.stages.<i-1>.<j>.shortcut
        sub_block1                         dropped: stored in these files but never used

    TRADES has no normalization.
    """
    used = {name: tensor for name, tensor in bare_names(state).items() if not name.startswith("sub_block1.")}
    return {_trades_name(name): tensor for name, tensor in used.items()}


def from_he(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of an HE WideResNet for ``Classifier(WRN(shape), Hypersphere(640, 10), Normalize(...))``.

    Names are those of TRADES without ``fc.bias``. The mean and standard deviation are constants in the code of HE and
    are added here. The original network returns cosines, :class:`Hypersphere` returns ``scale`` times as much.
    """
    mean, std = (torch.tensor(values)[:, None, None] for values in (_HE_MEAN, _HE_STD))
    return {**from_trades(state), "normalize.mean": mean, "normalize.std": std}


def from_madry(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of Madry's or TLA's CIFAR-10 network.

    They fit ``Classifier(WRN(shape, form="madry"), Linear(640, 10), PerImage())``.

    ::

        input/init_conv                    encoder.stem
        unit_<i>_<j>/..activation/..Norm   encoder.stages.<i-1>.<j>.opening.0
        unit_<i>_<j>/sub1/conv1            encoder.stages.<i-1>.<j>.body.0
        unit_<i>_<j>/sub2/..Norm, conv2    encoder.stages.<i-1>.<j>.body.1, body.3
        unit_last/BatchNorm, logit         encoder.closing.0, head

    Kernels are permuted from (height, width, in, out) to torch's order; momentum, the step count and TLA's prefix
    ``main_encoder/`` are dropped. To export a checkpoint, use TensorFlow once: write every ``reader.get_tensor(name)``
    of ``reader = tf.train.load_checkpoint(folder)`` to a .safetensors file under its name.
    """
    bare = {name.removeprefix("main_encoder/").removesuffix(":0"): tensor for name, tensor in state.items()}
    used = {name: tensor for name, tensor in bare.items() if name != "global_step" and not name.endswith("/Momentum")}
    return {_madry_name(name): _to_torch(tensor) for name, tensor in used.items()}


def from_madry_mnist(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename Madry's MNIST weights for ``Classifier(MadryCNN((1, 28, 28)), Linear(1024, 10))``.

    The variables are numbered: ``Variable``, ``Variable_1`` ... ``Variable_7`` are weight and bias of the two
    convolutions, the hidden layer and the output layer. The state of Adam is dropped. To export, see
    :func:`from_madry`.
    """
    bare = {name.removesuffix(":0"): tensor for name, tensor in state.items()}
    theirs = ["Variable", *(f"Variable_{number}" for number in range(1, 8))]
    if absent := [name for name in theirs if name not in bare]:
        raise ValueError(f"the weights have no {some(absent)} but Madry's MNIST network has; give its checkpoint")
    ours = [f"encoder.layers.{number}.{leaf}" for number in (0, 3, 7) for leaf in ("weight", "bias")]
    mapped = {name: _to_torch(bare[old]) for name, old in zip([*ours, "head.weight", "head.bias"], theirs, strict=True)}
    mapped["encoder.layers.7.weight"] = _channels_first(mapped["encoder.layers.7.weight"])
    return mapped


def _trades_name(name: str) -> str:
    unit = re.fullmatch(r"block([123])\.layer\.(\d+)\.(\w+)\.(\w+)", name)
    if unit and unit[3] in _TRADES_UNIT:
        return f"encoder.stages.{int(unit[1]) - 1}.{unit[2]}.{_TRADES_UNIT[unit[3]]}.{unit[4]}"
    part, _, leaf = name.partition(".")
    if part in _TRADES_ENDS:
        return f"{_TRADES_ENDS[part]}.{leaf}"
    raise ValueError(f"{name!r} is not in the layout of TRADES; for another layout use load_into with rename")


def _madry_name(name: str) -> str:
    path, _, leaf = name.rpartition("/")
    unit = re.fullmatch(r"unit_([123])_(\d+)/(.+)", path)
    if leaf in _MADRY_LEAVES and unit and unit[3] in _MADRY_UNIT:
        return f"encoder.stages.{int(unit[1]) - 1}.{unit[2]}.{_MADRY_UNIT[unit[3]]}.{_MADRY_LEAVES[leaf]}"
    if leaf in _MADRY_LEAVES and path in _MADRY_ENDS:
        return f"{_MADRY_ENDS[path]}.{_MADRY_LEAVES[leaf]}"
    raise ValueError(f"{name!r} is not in the layout of Madry's CIFAR-10 network; give the variables of its checkpoint")


def _to_torch(weight: Tensor) -> Tensor:
    if weight.ndim == 4:
        return weight.permute(3, 2, 0, 1)
    return weight.t() if weight.ndim == 2 else weight


def _channels_first(hidden: Tensor) -> Tensor:
    """Reorder the columns of a (units, pixels * 64) weight from TensorFlow's channels-last to channels-first."""
    side = isqrt(hidden.shape[1] // 64) if hidden.ndim == 2 else 0
    if hidden.ndim != 2 or hidden.shape[1] != 64 * side * side:
        raise ValueError(
            f"the hidden layer has shape {tuple(hidden.shape)[::-1]} but Madry's has (3136, 1024); check it"
        )
    return hidden.reshape(-1, side, side, 64).permute(0, 3, 1, 2).flatten(1)
