"""Published layouts: reference networks with the published names give the same logits after the mapping."""

import numpy as np
import pytest
import torch
from random_norms import randomized
from torch import Tensor, nn

from holdfast.models.classifier import Classifier, Normalize, PerImage
from holdfast.models.encoders.madry_cnn import MadryCNN
from holdfast.models.encoders.wrn import WRN
from holdfast.models.heads.hypersphere import Hypersphere
from holdfast.models.layouts import LAYOUTS, from_he, from_madry, from_madry_mnist, from_trades, published
from holdfast.models.weights import load_into
from holdfast.rng import Rng

Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class TradesUnit(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.convShortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first = self.bn1(x).relu()
        start = x if self.convShortcut is None else self.convShortcut(first)
        total: Tensor = start + self.conv2(self.bn2(self.conv1(first)).relu())
        return total


class TradesStage(nn.Module):
    def __init__(self, units: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        rest = [TradesUnit(outputs, outputs, 1) for _ in range(units - 1)]
        self.layer = nn.Sequential(TradesUnit(inputs, outputs, stride), *rest)


class Trades(nn.Module):
    """A network with the names of TRADES' WideResNet, including its unused sub_block1."""

    def __init__(self, depth: int, widen: int, *, bias: bool = True) -> None:
        super().__init__()
        units, a, b, c = (depth - 4) // 6, 16 * widen, 32 * widen, 64 * widen
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.block1, self.sub_block1 = TradesStage(units, 16, a, 1), TradesStage(units, 16, a, 1)
        self.block2, self.block3 = TradesStage(units, a, b, 2), TradesStage(units, b, c, 2)
        self.bn1, self.fc = nn.BatchNorm2d(c), nn.Linear(c, 10, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        for block in (self.block1, self.block2, self.block3):
            x = block.layer(x)
        logits: Tensor = self.fc(self.bn1(x).relu().mean((2, 3)))
        return logits


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(("depth", "widen"), [(16, 2), (10, 1)])
def test_trades_gives_the_same_logits(prefix: str, depth: int, widen: int, rng: Rng) -> None:
    theirs = randomized(Trades(depth, widen))
    ours = Classifier(WRN((3, 16, 16), depth=depth, width=64 * widen), nn.Linear(64 * widen, 10)).eval()
    x = rng.uniform(torch.empty(3, 3, 16, 16))
    assert not torch.allclose(ours(x), theirs(x), atol=1e-2)
    load_into(ours, from_trades({prefix + name: tensor for name, tensor in theirs.state_dict().items()}))
    torch.testing.assert_close(ours(x), theirs(x))


def test_trades_34_10_names_match() -> None:
    with torch.device("meta"):
        theirs = Trades(34, 10).state_dict()
        ours = Classifier(WRN((3, 32, 32)), nn.Linear(640, 10)).state_dict()
    assert "block3.layer.4.bn2.running_var" in theirs
    mapped = from_trades(theirs)
    assert {name: tensor.shape for name, tensor in mapped.items()} == {name: t.shape for name, t in ours.items()}


def test_hypersphere_embedding_gives_scaled_cosines_of_standardized_images(rng: Rng) -> None:
    theirs = randomized(Trades(10, 1, bias=False))
    ours = published("he", theirs.state_dict(), (3, 8, 8)).eval()
    x = rng.uniform(torch.empty(4, 3, 8, 8))
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2471, 0.2435, 0.2616])
    weight, theirs.fc = theirs.fc.weight, nn.Identity()
    features = theirs((x - mean[:, None, None]) / std[:, None, None])
    cosines = torch.cosine_similarity(features[:, None], weight[None], dim=2)
    torch.testing.assert_close(ours(x), 10 * cosines, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["layer1.0.weight", "block4.layer.0.bn1.weight", "block1.layer.0.conv3.weight"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not in the layout of TRADES"):
        from_trades({name: torch.ones(1)})


def same_conv(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """TensorFlow's SAME convolution of (b, height, width, channels) with kernels (height, width, in, out)."""
    size, k = x.shape[1], len(kernel)
    out = -(-size // stride)
    total = max((out - 1) * stride + k - size, 0)
    ends = (total // 2, total - total // 2)
    x = np.pad(x, ((0, 0), ends, ends, (0, 0)))
    last = stride * (out - 1) + 1
    return sum(x[:, i : i + last : stride, j : j + last : stride] @ kernel[i, j] for i in range(k) for j in range(k))


def pooled(x: np.ndarray, by: int) -> np.ndarray:
    b, h, w, c = x.shape
    return x.reshape(b, h // by, by, w // by, by, c)


class Madry:
    """Madry's CIFAR-10 network, computed from arrays with the names of its TensorFlow code."""

    def __init__(self, units: int, widen: int) -> None:
        self.draw, self.units = np.random.default_rng(0), units
        self.sizes = (16, 16 * widen, 32 * widen, 64 * widen)
        self.arrays: Arrays = {"global_step": np.array(7), "input/init_conv/DW": self.kernel(3, 3, 3, 16)}
        for stage in (1, 2, 3):
            for unit in range(units):
                self.add_unit(stage, unit)
        self.add_norm("unit_last", self.sizes[3])
        self.arrays |= {"logit/DW": self.kernel(self.sizes[3], 10), "logit/biases": self.draw.normal(size=10)}

    def kernel(self, *shape: int) -> np.ndarray:
        return self.draw.normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1]))

    def add_norm(self, scope: str, width: int) -> None:
        for leaf in ("gamma", "moving_variance"):
            self.arrays[f"{scope}/BatchNorm/{leaf}"] = self.draw.uniform(0.5, 2, width)
        for leaf in ("beta", "moving_mean"):
            self.arrays[f"{scope}/BatchNorm/{leaf}"] = self.draw.normal(size=width)

    def add_unit(self, stage: int, unit: int) -> None:
        scope, outputs = f"unit_{stage}_{unit}", self.sizes[stage]
        inputs = self.sizes[stage - 1] if unit == 0 else outputs
        self.add_norm(f"{scope}/{self.activation(stage, unit)}", inputs)
        self.add_norm(f"{scope}/sub2", outputs)
        self.arrays[f"{scope}/sub1/conv1/DW"] = self.kernel(3, 3, inputs, outputs)
        self.arrays[f"{scope}/sub1/conv1/DW/Momentum"] = np.zeros((3, 3, inputs, outputs))
        self.arrays[f"{scope}/sub2/conv2/DW"] = self.kernel(3, 3, outputs, outputs)

    def activation(self, stage: int, unit: int) -> str:
        return "shared_activation" if (stage, unit) == (1, 0) else "residual_only_activation"

    def norm(self, scope: str, x: np.ndarray) -> np.ndarray:
        gamma, beta, mean, var = (
            self.arrays[f"{scope}/BatchNorm/{leaf}"] for leaf in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        x = gamma * (x - mean) / np.sqrt(var + 1e-3) + beta
        return np.where(x < 0, 0.1 * x, x)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        x = np.stack([(im - im.mean()) / max(im.std(), 1 / np.sqrt(im.size)) for im in image])
        x = same_conv(x, self.arrays["input/init_conv/DW"])
        for stage in (1, 2, 3):
            for unit in range(self.units):
                scope, kind = f"unit_{stage}_{unit}", self.activation(stage, unit)
                stride = 2 if stage > 1 and unit == 0 else 1
                opened = self.norm(f"{scope}/{kind}", x)
                start = pooled(opened if kind == "shared_activation" else x, stride).mean((2, 4))
                y = same_conv(opened, self.arrays[f"{scope}/sub1/conv1/DW"], stride)
                y = same_conv(self.norm(f"{scope}/sub2", y), self.arrays[f"{scope}/sub2/conv2/DW"])
                side = (y.shape[3] - start.shape[3]) // 2
                x = y + np.pad(start, ((0, 0), (0, 0), (0, 0), (side, side)))
        return self.norm("unit_last", x).mean((1, 2)) @ self.arrays["logit/DW"] + self.arrays["logit/biases"]


def tensors(arrays: Arrays, prefix: str = "", suffix: str = "") -> dict[str, Tensor]:
    return {f"{prefix}{name}{suffix}": torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}


@pytest.mark.parametrize(("prefix", "suffix"), [("", ""), ("main_encoder/", ""), ("", ":0")])
def test_madry_gives_the_same_logits(prefix: str, suffix: str, rng: Rng) -> None:
    theirs = Madry(units=2, widen=2)
    ours = Classifier(WRN((3, 8, 8), depth=16, width=128, form="madry"), nn.Linear(128, 10), PerImage()).eval().double()
    arrays = {name: array for name, array in theirs.arrays.items() if not prefix or name != "global_step"}
    load_into(ours, from_madry(tensors(arrays, prefix, suffix)))
    x = rng.uniform(torch.empty(2, 3, 8, 8, dtype=torch.float64))
    logits = theirs(255 * x.permute(0, 2, 3, 1).numpy())
    np.testing.assert_allclose(ours(x).detach().numpy(), logits, atol=1e-9)


def test_madry_w32_10_names_match() -> None:
    with torch.device("meta"):
        ours = Classifier(WRN((3, 32, 32), form="madry"), nn.Linear(640, 10)).state_dict()
    wanted = {name for name in ours if "num_batches" not in name}
    mapped = from_madry(tensors(Madry(units=5, widen=1).arrays))
    assert set(mapped) == wanted


@pytest.mark.parametrize("name", ["unit_4_0/sub1/conv1/DW", "unit_1_0/sub3/conv3/DW", "logit/gamma2", "Variable"])
def test_other_variables_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not in the layout of Madry's CIFAR-10 network"):
        from_madry({name: torch.ones(1)})


def mnist_arrays(width: int) -> Arrays:
    draw = np.random.default_rng(0)
    shapes = ((5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (2 * 2 * 64, width), (width,), (width, 10), (10,))
    names = ["Variable", *(f"Variable_{number}" for number in range(1, 8))]
    arrays = {name: 0.1 * draw.normal(size=shape) for name, shape in zip(names, shapes, strict=True)}
    return arrays | {"beta1_power": np.array(0.9), "Variable/Adam": np.zeros((5, 5, 1, 32))}


def test_madry_mnist_gives_the_same_logits(rng: Rng) -> None:
    arrays = mnist_arrays(12)
    ours = Classifier(MadryCNN((1, 8, 8), width=12), nn.Linear(12, 10)).eval().double()
    load_into(ours, from_madry_mnist(tensors(arrays)))
    x = rng.uniform(torch.empty(3, 1, 8, 8, dtype=torch.float64))
    first, bias1, second, bias2, hidden, bias3, top, bias4 = list(arrays.values())[:8]
    y = pooled(np.maximum(same_conv(x.permute(0, 2, 3, 1).numpy(), first) + bias1, 0), 2).max((2, 4))
    y = pooled(np.maximum(same_conv(y, second) + bias2, 0), 2).max((2, 4))
    y = np.maximum(y.reshape(3, -1) @ hidden + bias3, 0) @ top + bias4
    np.testing.assert_allclose(ours(x).detach().numpy(), y, atol=1e-10)


def test_madry_mnist_refuses_other_variables() -> None:
    state = tensors(mnist_arrays(12))
    with pytest.raises(ValueError, match="the weights have no Variable_3, Variable_6 but Madry's MNIST network has"):
        from_madry_mnist({name: t for name, t in state.items() if name not in ("Variable_3", "Variable_6")})
    for wrong in (torch.ones(130, 12), torch.ones(12), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"the hidden layer has shape .* but Madry's has \(3136, 1024\)"):
            from_madry_mnist(state | {"Variable_4": wrong})


def published_states() -> dict[str, tuple[dict[str, Tensor], tuple[int, ...], Classifier]]:
    """Return for each layout a state dict, the shape of samples, and its classifier with other weights."""
    trades, madry = randomized(Trades(16, 2)).state_dict(), tensors(Madry(units=2, widen=1).arrays)
    he = randomized(Trades(10, 1, bias=False)).state_dict()
    cosines = Classifier(WRN((3, 8, 8), depth=10, width=64), Hypersphere(64, 10), Normalize((0.5,) * 3, (0.5,) * 3))
    return {
        "he": (he, (3, 8, 8), cosines),
        "trades": (trades, (3, 8, 8), Classifier(WRN((3, 8, 8), depth=16, width=128), nn.Linear(128, 10))),
        "madry": (
            madry,
            (3, 8, 8),
            Classifier(WRN((3, 8, 8), depth=16, width=64, form="madry"), nn.Linear(64, 10), PerImage()),
        ),
        "madry-mnist": (
            tensors(mnist_arrays(12)),
            (1, 8, 8),
            Classifier(MadryCNN((1, 8, 8), width=12), nn.Linear(12, 10)),
        ),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_network_sizes_are_inferred_from_a_published_checkpoint(layout: str, rng: Rng) -> None:
    state, shape, by_hand = published_states()[layout]
    mapping = {"trades": from_trades, "he": from_he, "madry": from_madry, "madry-mnist": from_madry_mnist}[layout]
    load_into(by_hand, mapping(state))
    x = rng.uniform(torch.empty(2, *shape))
    assert torch.equal(published(layout, state, shape).eval()(x), by_hand.eval()(x))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wide_tensors_do_not_allocate_a_huge_network(layout: str) -> None:
    state, shape, _ = published_states()[layout]
    head = {"trades": "fc.weight", "he": "fc.weight", "madry": "logit/DW", "madry-mnist": "Variable_6"}[layout]
    wide = torch.zeros(10, 200_000)  # the network would take a million GB, the last two 40 GB
    with pytest.raises(ValueError, match="the weights do not fit the model"):
        published(layout, state | {head: wide if head == "fc.weight" else wide.t()}, shape)


def test_a_checkpoint_without_an_output_layer_is_refused() -> None:
    state = {name: tensor for name, tensor in Trades(10, 1).state_dict().items() if not name.startswith("fc")}
    with pytest.raises(ValueError, match="the weights have no output layer as the layout 'trades' has"):
        published("trades", state, (3, 8, 8))
