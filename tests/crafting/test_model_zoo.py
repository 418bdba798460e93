"""PGD through the crafting view fools as many samples of unusual models as PGD on the module itself."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, skip_init
from torch.optim.swa_utils import AveragedModel

from holdfast import PGD, LInf, Rng, Threat
from holdfast.crafting import using

SIDE, CLASSES = 6, 5
PIXELS = SIDE * SIDE


class Net(nn.Module):
    """A module of named parts whose forward pass is a function of itself and the input."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def layer(function: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter | Tensor) -> nn.Module:
    """A convolution and batch norm, this function of the 4-channel images, and a linear head."""
    before = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
    return nn.Sequential(*before, Net(function, **parts), nn.Flatten(), nn.LazyLinear(CLASSES))


def between(*layers: nn.Module) -> nn.Module:
    """The same with layers."""
    return layer(lambda m, x: m.inside(x), inside=nn.Sequential(*layers))


def small() -> nn.Sequential:
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4 * PIXELS, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def changed(change: Callable[[Any], object]) -> nn.Module:
    """The small network after a change."""
    model = small()
    change(model)
    return model


def replaced_forward(model: Any) -> None:
    forward = model.forward
    model.forward = lambda x: -forward(x)


def counting(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return x * (1 + 0.01 * (m.count % 2))


def in_place(_: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0
    y[:, 1:] += x[:, :1]
    return y.mul_(2).relu_()


def tied(m: Any, x: Tensor) -> Tensor:
    hidden = functional.linear(x.flatten(1), m.weight).relu()
    return functional.linear(functional.linear(hidden, m.weight.T).relu(), m.weight)[:, :CLASSES]


def attend(m: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    return tokens + m.attention(tokens, tokens, tokens, need_weights=False)[0]


def branch(_: Any, x: Tensor) -> Tensor:
    return x.relu() if x.sum() > 0 else x.tanh()


def each_alone(_: Any, x: Tensor) -> Tensor:
    return torch.stack([one.relu() if one.mean() > 0 else -one for one in x])


def spectrum(_: Any, x: Tensor) -> Tensor:
    found: Tensor = torch.fft.rfft2(x)
    return torch.cat([found.real, found.imag], 1)


class StraightThrough(torch.autograd.Function):
    """Rounds forward; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Clipped(torch.autograd.Function):
    """A custom backward that clips gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return (grads[0] * (ctx.saved_tensors[0] > -0.1)).clamp(-1, 1)


class Rank(nn.Module):
    """A parametrization: a symmetric weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


class Slots(nn.Linear):
    """A subclass of a layer with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(1)).sin()


def normed(x: Tensor) -> Tensor:
    return x / x.flatten(1).norm(dim=1)[:, None, None, None]


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1]))


ZOO: dict[str, Callable[[], nn.Module]] = {
    "small": small,
    "weight tying": lambda: Net(tied, weight=weight(PIXELS, PIXELS)),
    "shared module": lambda: changed(lambda m: m.insert(3, m[0].__class__(4, 4, 1)) and m.insert(4, m[3])),
    "weight norm": lambda: changed(lambda m: parametrizations.weight_norm(m[0])),
    "spectral norm": lambda: changed(lambda m: parametrizations.spectral_norm(m[4])),
    "orthogonal": lambda: changed(lambda m: parametrizations.orthogonal(m[4])),
    "parametrization": lambda: between(
        nn.Flatten(2), parametrize.register_parametrization(nn.Linear(PIXELS, PIXELS), "weight", Rank())
    ),
    "dynamic control flow": lambda: layer(branch),
    "control flow per sample": lambda: layer(each_alone),
    "in-place operations": lambda: layer(in_place),
    "in-place layers": lambda: between(nn.Hardtanh(inplace=True), nn.Dropout(inplace=True)),
    "functional calls": lambda: layer(lambda m, x: functional.avg_pool2d(functional.gelu(x), 2)),
    "functional linear": lambda: Net(lambda m, x: functional.linear(x.flatten(1), m.w), w=weight(CLASSES, PIXELS)),
    "dropout in eval": lambda: layer(lambda m, x: functional.dropout(x, 0.1, training=True)),
    "noise": lambda: layer(lambda m, x: x + 0.02 * torch.randn_like(x)),
    "buffer changed in forward": lambda: layer(counting, count=torch.zeros(())),
    "batch statistics": lambda: between(nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU()),
    "batch norm alone": lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(PIXELS, CLASSES)),
    "batch norm after ReLU": lambda: between(nn.ReLU(), nn.BatchNorm2d(4)),
    "negative batch norm": lambda: changed(lambda m: nn.init.constant_(m[1].weight, -1.0)),
    "object with logits": lambda: Net(lambda m, x: SimpleNamespace(logits=m.net(x)), net=small()),
    "channels last": lambda: small().to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    "float64": lambda: small().double(),
    "float64 inside": lambda: layer(lambda m, x: x.double().sigmoid().float()),
    "mixed types": lambda: nn.Sequential(small()[:4], Net(lambda m, x: x.double()), nn.Linear(144, 5).double()),
    "half inside": lambda: layer(lambda m, x: x.bfloat16().relu().float()),
    "forward hook": lambda: changed(lambda m: m[2].register_forward_hook(lambda _m, _a, out: -out)),
    "pre-hook": lambda: changed(lambda m: m[4].register_forward_pre_hook(lambda _m, a: (a[0] * 2,))),
    "backward hook": lambda: changed(lambda m: m[4].register_full_backward_hook(lambda _m, g, _o: (-g[0],))),
    "forward of an instance": lambda: changed(replaced_forward),
    "forward of a layer": lambda: changed(lambda m: replaced_forward(m[4])),
    "lambda layer": lambda: layer(lambda m, x: x.pow(2) - x.abs()),
    "custom autograd": lambda: layer(lambda m, x: Clipped.apply(x)),
    "straight-through": lambda: layer(lambda m, x: StraightThrough.apply(x)),
    "straight-through by detach": lambda: layer(lambda m, x: x + ((x * 8).round() / 8 - x).detach()),
    "quantized input": lambda: nn.Sequential(Net(lambda m, x: x + ((x * 15).round() / 15 - x).detach()), small()),
    "einsum": lambda: layer(lambda m, x: torch.einsum("bchw,dc->bdhw", x, m.w).relu(), w=weight(6, 4)),
    "matmul": lambda: layer(lambda m, x: x.flatten(1) @ m.w, w=weight(4 * PIXELS, 20)),
    "LSTM": lambda: layer(lambda m, x: m.lstm(x.flatten(2))[0], lstm=nn.LSTM(PIXELS, 8, batch_first=True)),
    "GRU cell in a loop": lambda: layer(
        lambda m, x: m.cell(x[:, 0].flatten(1), m.cell(x[:, 1].flatten(1))), cell=nn.GRUCell(PIXELS, 12)
    ),
    "attention": lambda: layer(attend, attention=nn.MultiheadAttention(4, 2, batch_first=True)),
    "transformer": lambda: layer(
        lambda m, x: m.block(x.flatten(2).mT), block=nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    ),
    "scaled dot product": lambda: layer(lambda m, x: functional.scaled_dot_product_attention(x, x, x)),
    "group norm": lambda: between(nn.GroupNorm(2, 4), nn.SiLU()),
    "instance norm": lambda: between(nn.InstanceNorm2d(4, affine=True), nn.ELU()),
    "layer norm": lambda: between(nn.LayerNorm([4, SIDE, SIDE]), nn.Mish()),
    "local response norm": lambda: between(nn.LocalResponseNorm(2), nn.Softplus()),
    "normalized input": lambda: nn.Sequential(Net(lambda m, x: normed(x)), small()),
    "embedding of rounded inputs": lambda: layer(
        lambda m, x: x + m.table((x.detach().sigmoid() * 9).long()).squeeze(-1), table=nn.Embedding(10, 1)
    ),
    "complex numbers": lambda: layer(spectrum),
    "complex weights": lambda: layer(lambda m, x: (x * torch.exp(1j * m.phase)).abs(), phase=weight(SIDE, SIDE)),
    "sort": lambda: layer(lambda m, x: x.flatten(1).sort(1).values),
    "top k": lambda: layer(lambda m, x: x.flatten(1).topk(20, 1).values),
    "scatter": lambda: layer(lambda m, x: torch.zeros_like(x).index_add(1, torch.tensor([1, 0, 3, 2]), x)),
    "indexing": lambda: layer(lambda m, x: x[:, [2, 0], ::2, 1:]),
    "where": lambda: layer(lambda m, x: torch.where(x > 0, x, x.exp() - 1)),
    "max of branches": lambda: layer(
        lambda m, x: torch.maximum(m.a(x), m.b(x)), a=nn.Conv2d(4, 4, 1), b=nn.Conv2d(4, 4, 3, padding=1)
    ),
    "maxout": lambda: layer(lambda m, x: x.unflatten(1, (2, 2)).amax(2)),
    "residual": lambda: layer(lambda m, x: x + m.c(x).relu(), c=nn.Conv2d(4, 4, 3, padding=1)),
    "dense": lambda: layer(lambda m, x: torch.cat([x, m.c(x)], 1), c=nn.Conv2d(4, 4, 3, padding=1)),
    "grouped, dilated, strided": lambda: between(nn.Conv2d(4, 8, 3, 2, 2, 2, groups=4), nn.PReLU()),
    "reflect padding": lambda: between(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU6()),
    "circular padding": lambda: between(nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular"), nn.CELU()),
    "transposed convolution": lambda: between(nn.ConvTranspose2d(4, 2, 2, 2), nn.BatchNorm2d(2), nn.ReLU()),
    "convolution of lines": lambda: between(nn.Flatten(2), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ReLU()),
    "pixel shuffle": lambda: between(nn.PixelShuffle(2), nn.Upsample(scale_factor=2, mode="bilinear")),
    "unfold": lambda: between(nn.Unfold(2), nn.Hardswish()),
    "adaptive pooling": lambda: between(nn.AdaptiveMaxPool2d(2), nn.LogSigmoid()),
    "max pooling with padding": lambda: between(nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), nn.ReLU()),
    "power pooling": lambda: between(nn.ReLU(), nn.LPPool2d(2, 2)),
    "bilinear": lambda: layer(
        lambda m, x: m.two(x[:, 0].flatten(1), x[:, 1].flatten(1)), two=nn.Bilinear(PIXELS, PIXELS, 8)
    ),
    "prototypes": lambda: Net(lambda m, x: -torch.cdist(x.flatten(1), m.p).square(), p=weight(CLASSES, PIXELS)),
    "cosine head": lambda: Net(
        lambda m, x: 20 * functional.linear(functional.normalize(x.flatten(1)), functional.normalize(m.w)),
        w=weight(CLASSES, PIXELS),
    ),
    "softmax head": lambda: nn.Sequential(*small(), nn.LogSoftmax(1)),
    "temperature": lambda: Net(lambda m, x: m.net(x) / m.t.exp(), net=small(), t=weight(1)),
    "ensemble": lambda: Net(
        lambda m, x: torch.stack([n(x) for n in m.nets]).mean(0), nets=nn.ModuleList([small(), small(), small()])
    ),
    "vmap ensemble": lambda: Net(
        lambda m, x: torch.vmap(lambda w: x.flatten(1) @ w)(m.w).tanh().sum(0), w=weight(3, PIXELS, CLASSES)
    ),
    "subclass of Linear": lambda: changed(lambda m: m.__setitem__(4, Slots(4 * PIXELS, 16))),
    "no bias": lambda: changed(
        lambda m: (m[0].register_parameter("bias", None), m[4].register_parameter("bias", None))
    ),
    "nested containers": lambda: nn.Sequential(nn.Sequential(nn.Sequential(small()[:3]), nn.Identity()), small()[3:]),
    "AveragedModel": lambda: AveragedModel(small()),
    "DataParallel": lambda: nn.DataParallel(small()),
    "compiled": lambda: torch.compile(small(), backend="eager"),  # type: ignore[dict-item]
    "scripted": lambda: torch.jit.script(small()),
    "scripted layer": lambda: between(torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()))),
    "traced": lambda: torch.jit.trace(small().eval(), torch.rand(2, 1, SIDE, SIDE)),
    "fx graph": lambda: torch.fx.symbolic_trace(small()),
    "double backward inside": lambda: layer(lambda m, x: x * x.relu().square().sum((1, 2, 3), keepdim=True).sqrt()),
    "steep": lambda: nn.Sequential(Net(lambda m, x: torch.sigmoid(20 * (x - 0.5))), small()),
    "large logits": lambda: changed(lambda m: m[-1].weight.data.mul_(1e3)),
    "small weights": lambda: changed(lambda m: m[0].weight.data.mul_(1e-6)),
    "skipped initialization": lambda: changed(
        lambda m: nn.init.normal_(m.__setitem__(4, skip_init(nn.Linear, 4 * PIXELS, 16)) or m[4].weight)
    ),
}

RANDOM = {"dropout in eval", "noise"}  # the fast form draws other random numbers


def unbroken(model: nn.Module, x: Tensor, mode: Any) -> int:
    """How many samples keep their label under PGD."""
    with torch.no_grad(), torch.random.fork_rng():
        logits = model(x)
        y = getattr(logits, "logits", logits).argmax(1)
    attack = PGD(threat=Threat(LInf(), 0.12), steps=5)
    with using(mode):
        x_adv = attack(model, x, y, rng=Rng(1))
    assert Threat(LInf(), 0.12).contains(x_adv, x).all()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        out = model(x_adv)
    return int((getattr(out, "logits", out).argmax(1) == y).sum())


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:Lazy modules:UserWarning")
def test_crafting_is_as_strong_as_the_module_itself(name: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name]()
    x = torch.rand(64, 1, SIDE, SIDE)
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        model(x)
    model.eval()
    if name == "float64":
        x = x.double()
    left = {mode: unbroken(model, x, mode) for mode in ("module", "auto")}
    assert left["auto"] <= left["module"] + (8 if name in RANDOM else 1)


@pytest.mark.parametrize("mode", ["module", "auto"])
@pytest.mark.parametrize("wrap", [lambda out: (out, None), lambda out: {"logits": out}], ids=["tuple", "dict"])
def test_outputs_without_logits_are_refused_in_one_sentence(wrap: Callable[[Tensor], object], mode: Any) -> None:
    model = Net(lambda m, x: wrap(m.net(x)), net=small()).eval()
    attack = PGD(threat=Threat(LInf(), 0.12), steps=2)
    with using(mode), pytest.raises(ValueError, match=r"wrap it so that it returns them or an object with \.logits"):
        attack(model, torch.rand(4, 1, SIDE, SIDE), torch.arange(4), rng=Rng(0))
