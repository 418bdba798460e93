"""oneDNN products: the same results with plain and packed weights; packed if a call has many passes."""

import pytest
import torch
from torch import nn

from holdfast import PGD, Classifier, LInf, Rng, Threat, arithmetic
from holdfast.crafting import folding, layers, packed
from holdfast.crafting.layers import Linear
from holdfast.crafting.processor import packs
from holdfast.crafting.view import crafting

pytestmark = pytest.mark.skipif(
    not packed.worth_packing(torch.zeros(1 << 9, 1 << 9)), reason="this torch has no oneDNN to pack for"
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def agree(a, b) -> None:
    assert (a.double() - b.double()).abs().max() <= TOLERANCE[b.dtype] * b.double().abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 7, 50])
@pytest.mark.parametrize("packing", [True, False])
def test_products_both_ways(dtype, n, packing) -> None:
    if not packs(dtype):
        pytest.skip("oneDNN cannot pack this type without AVX-512")
    torch.manual_seed(0)
    weight, bias = torch.randn(300, 200).to(dtype), torch.randn(300).to(dtype)
    x, grad = torch.randn(n, 200).to(dtype), torch.randn(n, 300).to(dtype)
    products = packed.Products(weight, packing)
    exact = x.double() @ weight.double().t() + bias.double()
    agree(products.forward(x, bias, relu=False), exact.to(dtype))
    agree(products.forward(x, bias, relu=True), exact.relu().to(dtype))
    agree(products.forward(x, None, relu=False), (exact - bias.double()).to(dtype))
    agree(products.input_gradient(grad), (grad.double() @ weight.double()).to(dtype))


def test_small_weights_and_other_types_are_not_packed() -> None:
    assert not packed.worth_packing(torch.zeros(10, 1024))  # small
    assert not packed.worth_packing(torch.zeros(1024, 1024, dtype=torch.float64))
    assert not packed.worth_packing(torch.zeros(1024, 1024, device="meta"))


def network() -> Classifier:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512))
    encoder.extend([nn.BatchNorm1d(512), nn.ReLU()])
    return Classifier(encoder, nn.Linear(512, 4)).eval()


def linear(model) -> list[Linear]:
    made = folding.folded(model)
    assert isinstance(made, folding.Folded)
    return [layer for run in made._runs for layer in run.layers if isinstance(layer, Linear)]


def outputs(model, x, passes):
    here = x.clone().requires_grad_()
    with arithmetic("float32"), crafting(model, Rng(0), passes) as view, torch.enable_grad():
        logits = view.outputs(here).logits
        (gradient,) = torch.autograd.grad(logits.square().sum(), here, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), here)
    return logits, gradient, second


def test_a_packed_network_gives_the_same_up_to_second_derivatives() -> None:
    model, x = network(), torch.rand(6, 1, 8, 8)
    plain = outputs(model, x, packed.OFTEN - 1)
    assert [layer.packed for layer in linear(model)] == [None, None, None]
    assert [layer.products is not None for layer in linear(model)] == [False, True, False]
    full = outputs(model, x, packed.OFTEN)
    assert [layer.packed is not None for layer in linear(model)] == [False, True, False]
    for a, b in zip(full, plain, strict=True):
        agree(a, b.detach())


def test_whether_weights_are_packed_depends_on_the_call_alone(monkeypatch) -> None:
    model, x, y = network(), torch.rand(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64)
    seen: list[bool] = []
    forward = packed.Products.forward
    monkeypatch.setattr(
        packed.Products, "forward", lambda self, *args: seen.append(self._forward.is_mkldnn) or forward(self, *args)
    )
    for steps, used in ((packed.OFTEN, True), (packed.OFTEN - 1, False), (packed.OFTEN, True)):
        seen.clear()
        with arithmetic("float32"):
            PGD(threat=Threat(LInf(), 0.1), steps=steps, keep="last")(model, x, y, rng=Rng(0))
        assert set(seen) == {used}


@pytest.mark.parametrize("way", ["optimizer", "data"])
def test_packed_weights_follow_the_weights(way) -> None:
    model, x = network(), torch.rand(6, 1, 8, 8)
    for _ in range(3):  # by now contents are known
        before = outputs(model, x, packed.OFTEN)[0]
    weight = model.encoder[4].weight
    if way == "data":
        weight.data.neg_()
    else:
        with torch.no_grad():
            weight.neg_()
    after = outputs(model, x, packed.OFTEN)[0]
    agree(after, model(x).detach())
    assert not torch.allclose(before, after)


def test_a_weight_is_packed_once_for_all_calls(monkeypatch) -> None:
    model, x = network(), torch.rand(6, 1, 8, 8)
    outputs(model, x, packed.OFTEN)
    outputs(model, x, packed.OFTEN)  # from now on contents are compared
    monkeypatch.setattr(layers, "Products", lambda weight, packed: pytest.fail("packed again"))
    outputs(model, x, packed.OFTEN)
