"""Fused layers give the outputs and gradients that autograd gives for the same layers."""

import gc
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from holdfast import Hypersphere
from holdfast.crafting import fused
from holdfast.models.heads.linear import Linear

IMAGE = st.sampled_from(
    [
        lambda c: (nn.Conv2d(c, 4, 3, padding=1), 4),
        lambda c: (nn.Conv2d(c, 2, (3, 1), stride=(2, 1), padding=(1, 0), bias=False), 2),
        lambda c: (nn.Conv2d(c, 2 * c, 3, padding=2, dilation=2, groups=c), 2 * c),
        lambda c: (nn.ReLU(), c),
        lambda c: (nn.ReLU(inplace=True), c),
        lambda c: (nn.MaxPool2d(3, stride=2, padding=1), c),
        lambda c: (nn.MaxPool2d(2, stride=1, ceil_mode=True), c),
        lambda c: (nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), c),
        lambda c: (nn.AvgPool2d(2, ceil_mode=True), c),
        lambda c: (nn.Identity(), c),
        lambda c: (nn.Dropout(0.5), c),
        lambda c: (nn.Softplus(), c),
    ]
)


def joined(net: nn.Module) -> tuple[fx.GraphModule, list[fused.Run]]:
    graph = fx.GraphModule(net, _Leaves().trace(net))
    found = fused.join(graph)
    graph.recompile()
    return graph, found


class _Leaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)


def same(net: nn.Module, x: Tensor) -> None:
    """Outputs and the gradient of a function of them agree."""
    found = []
    for model in (net, joined(net)[0]):
        here = x.clone().requires_grad_()
        out = model(here * 1)  # a network that begins with an in-place ReLU must not overwrite a leaf
        found.append((out, *torch.autograd.grad((out * out.detach().cos()).sum(), here)))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def spoiled(layers: list[nn.Module]) -> bool:
    """True if a ReLU overwrites what autograd itself needs: the output of another ReLU."""
    kinds = [module for module in layers if not isinstance(module, nn.Identity | nn.Dropout)]
    return any(isinstance(a, nn.ReLU) and isinstance(b, nn.ReLU) and b.inplace for a, b in pairwise(kinds))


@given(st.lists(IMAGE, min_size=1, max_size=6), st.integers(0, 10**6), st.booleans())
def test_layers_of_any_kind_in_any_order(layers, seed, last) -> None:
    torch.manual_seed(seed)
    channels, net = 3, []
    for make in layers:
        module, channels = make(channels)
        net.append(module)
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    assume(not spoiled(net))
    wide = nn.Sequential(*net).double().eval()(x.clone()).flatten(1).shape[1]
    tail = nn.Flatten(), nn.Linear(wide, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)
    same(nn.Sequential(*net, *tail).double().eval(), x)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("batch", [True, False])
def test_images_of_few_channels(channels, last, batch) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 8, 12, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    net = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3), nn.ReLU())
    same(net.double().eval(), x if batch else x[0])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_kernels_as_large_as_the_image(last, bias) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    layers = nn.Conv2d(3, 6, (5, 4), stride=2, bias=bias), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.Flatten(), nn.Linear(5, 3)
    net = nn.Sequential(*layers).double().eval()
    same(net, x)
    same(nn.Sequential(net[0], net[1]), x[0])


class Features(nn.Module):
    """Gives features beside the logits, as they are or flat."""

    def __init__(self, head: nn.Module, relu: bool, flat: bool) -> None:
        super().__init__()
        last = [nn.ReLU()] if relu else []
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), *last)
        self.head, self.flat = head, flat

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(x)
        logits = self.head(features)
        return torch.flatten(features, 1) if self.flat else features, logits


@pytest.mark.parametrize("head", [Linear(5, 3), nn.Linear(5, 3, bias=False), Hypersphere(5, 3)])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_one_run_gives_features_and_logits(head, relu, flat, weights) -> None:
    torch.manual_seed(0)
    net = Features(head, relu, flat).double().eval().requires_grad_(False)
    graph, found = joined(net)
    assert [run.tap for run in found] == [len(found[0].layers) - 1]
    x, results = torch.randn(4, 2, 4, dtype=torch.float64, requires_grad=True), []
    for model in (net, graph):
        out = model(x)
        value = sum(weight * part.sin().square().sum() for weight, part in zip(weights, out, strict=True) if weight)
        (slope,) = torch.autograd.grad(value, x, retain_graph=True)
        (again,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad(again.square().sum(), x)
        results.append((*out, slope, again, second))
    assert results[0][2].abs().max() > 0
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


class Between(nn.Module):
    """Features that are changed after the head has read them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.first(x)
        logits = self.head(features)
        return torch.flatten(features, 1).relu_(), logits


def test_features_with_other_readers_end_a_run() -> None:
    torch.manual_seed(0)
    net = Between().double().eval().requires_grad_(False)
    graph, found = joined(net)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert [run.tap for run in found] == [0, 0]
    assert all(torch.equal(a, b) for a, b in zip(graph(x), net(x), strict=True))


def test_second_derivatives_of_an_input_that_was_overwritten_are_refused() -> None:
    graph, _ = joined(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval().requires_grad_(False))
    x = torch.randn(2, 4, requires_grad=True)
    here = x * 1
    out = graph(here)
    here.zero_()
    torch.autograd.grad(out.square().sum(), x, retain_graph=True)  # the weights alone decide the slope
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.square().sum(), x, create_graph=True)


@pytest.mark.parametrize("feature_norm", [True, False])
@pytest.mark.parametrize("weight_norm", ["differentiable", "projected", "none"])
def test_hypersphere_heads(feature_norm, weight_norm) -> None:
    torch.manual_seed(0)
    head = Hypersphere(6, 4, scale=7.0, feature_norm=feature_norm, weight_norm=weight_norm)
    x = torch.randn(5, 6, dtype=torch.float64)
    x[0] = 0  # no direction at all
    same(nn.Sequential(nn.Flatten(), head).double().eval(), x)


def test_directions_follow_the_weights_on_refresh() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), Hypersphere(6, 4)).double().eval()
    graph, found = joined(net)
    x = torch.randn(3, 6, dtype=torch.float64)
    net[1].weight.data.neg_()
    assert not torch.allclose(graph(x), net(x))
    for run in found:
        run.refresh()
    assert torch.allclose(graph(x), net(x))


class Residual(nn.Module):
    """A block whose in-place ReLU overwrites what the shortcut reads."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.relu, self.conv = nn.ReLU(inplace=inplace), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.relu(x)) + x


@pytest.mark.parametrize("inplace", [True, False])
def test_shortcuts_around_an_inplace_relu(inplace) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 3, 1), Residual(inplace), nn.Conv2d(3, 3, 1), Residual(inplace)).double().eval()
    same(net, torch.randn(2, 3, 5, 5, dtype=torch.float64))


class TwoReaders(nn.Module):
    """The ReLU's input is also an output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(self.relu(h)) * h


def test_tensors_with_other_readers_are_not_overwritten() -> None:
    torch.manual_seed(0)
    same(TwoReaders().double().eval(), torch.randn(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_gradient_that_comes_in_is_not_overwritten(layout) -> None:
    graph, (run,) = joined(nn.Sequential(nn.Conv2d(3, 2, 4), nn.ReLU(), nn.Flatten()).eval())
    x = torch.randn(5, 3, 4, 4).contiguous(memory_format=layout).requires_grad_()
    grad = torch.ones(5, 2)
    torch.autograd.grad(graph(x), x, grad)
    assert len(run.layers) == 2
    assert torch.equal(grad, torch.ones(5, 2))


def test_a_sequence_is_one_node_and_others_are_left() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Softplus(), nn.Identity(), nn.Linear(4, 2))
    graph, found = joined(net.eval())
    calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_module"]
    assert calls == ["run_0", "3", "run_1"]
    assert [len(run.layers) for run in found] == [2, 1]


def test_gradients_of_several_outputs_from_one_pass() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    graph, _ = joined(net)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    out, expected = graph(x), net(x)
    for k in range(3):
        (a,) = torch.autograd.grad(out[:, k].sum(), x, retain_graph=True)
        (b,) = torch.autograd.grad(expected[:, k].sum(), x, retain_graph=True)
        assert torch.allclose(a, b)


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3, 5), nn.ReLU()
    net = nn.Sequential(*layers, Hypersphere(5, 4), nn.Linear(4, 3)).double().eval().requires_grad_(False)
    x, found = torch.randn(4, 2, 6, 6, dtype=torch.float64, requires_grad=True), []
    for model in (net, joined(net)[0]):
        (slope,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x, create_graph=True)
        found += torch.autograd.grad(slope.square().sum(), x)
    assert found[0].abs().max() > 0
    assert torch.allclose(*found, rtol=1e-9, atol=1e-12)


class Written(nn.Module):
    """Forward passes that write on what a run reads, gives or passes on."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), Hypersphere(4, 4)
        self.flatten, self.relu, self.inplace = nn.Flatten(), nn.ReLU(), nn.ReLU(inplace=True)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.how == "what it gave":
            return self.head(h).mul_(2) + h
        if self.how == "what it passed on":
            return self.second(self.inplace(self.flatten(h))) + h
        g = self.second(self.flatten(h)) if self.how == "what it has read" else self.second(h)
        h.relu_()
        return self.relu(g) + h


@pytest.mark.parametrize("how", ["what it gave", "what it passed on", "what it has read", "what it is reading"])
def test_inplace_writes_that_autograd_allows(how) -> None:
    torch.manual_seed(0)
    same(Written(how).double().eval().requires_grad_(False), torch.randn(3, 4, dtype=torch.float64))


def test_overwriting_what_the_backward_needs_raises() -> None:
    graph, _ = joined(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval())
    x = torch.randn(2, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(graph(x).add_(1).sum(), x)


def test_more_and_fewer_axes_than_usual() -> None:
    torch.manual_seed(0)
    same(nn.Sequential(nn.Linear(6, 5), Hypersphere(5, 4)).double().eval(), torch.randn(2, 3, 6, dtype=torch.float64))
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)).double().eval()
    same(net, torch.randn(2, 6, 6, dtype=torch.float64))


def test_the_context_is_freed_with_the_output() -> None:
    graph, _ = joined(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval())
    gc.disable()
    try:
        out = graph(torch.randn(2, 4, requires_grad=True))
        context = weakref.ref(out.grad_fn)
        assert context() is not None
        del out
        assert context() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("after", [[], [nn.Flatten()], [nn.MaxPool2d(2)]])
def test_what_a_pooling_gives_may_be_overwritten(after) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *after, nn.ReLU(inplace=True))
    same(net.double().eval().requires_grad_(False), torch.randn(2, 3, 8, 8, dtype=torch.float64))


def test_an_empty_batch() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)).double().eval()
    same(net, torch.randn(0, 3, 8, 8, dtype=torch.float64))
