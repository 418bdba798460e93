"""Outputs agree with forward, for classifiers and for adapted modules."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.contracts import Model
from holdfast.models.classifier import Classifier, Normalize, adapt
from holdfast.models.encoders.tiny import Tiny
from holdfast.rng import Rng


class Answer(nn.Module):
    """A module that returns an object with logits, as many published models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=None, logits=self.top(self.body(x.flatten(1)).tanh()))


class TwoHeads(nn.Module):
    """A module whose layers run in another order than they are registered in, and one of them never."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(4, 3), nn.Linear(6, 2)
        self.body, self.unused = nn.Linear(6, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        side = self.side(x)
        logits: Tensor = self.main(self.body(x).relu()) + 0 * side.sum()
        return logits


class OutputsIsALayer(nn.Module):
    """A module with a submodule called ``outputs``."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.outputs = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.outputs(self.body(x.flatten(1)).relu())
        return logits


class Returns(nn.Module):
    """A module that returns a fixed object."""

    def __init__(self, out: object) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Tensor) -> object:
        return self.out


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)  # weights are initialized by torch's global generator


@pytest.fixture
def x(rng: Rng) -> Tensor:
    return rng.uniform(torch.empty(5, 1, 2, 3))


@pytest.fixture
def plain() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.fixture
def classifier() -> Classifier:
    return Classifier(Tiny((2, 4, 4), channels=3, width=7), nn.Linear(7, 3), Normalize((0.1, 0.2), (0.3, 0.5))).eval()


def test_classifier_outputs_agree_with_its_parts(classifier: Classifier, rng: Rng) -> None:
    x = rng.uniform(torch.empty(5, 2, 4, 4))
    normal = torch.stack([(x[:, 0] - 0.1) / 0.3, (x[:, 1] - 0.2) / 0.5], 1)
    features = classifier.encoder(normal)
    out = classifier.outputs(x)
    assert out.x is x
    torch.testing.assert_close(out.features, features)
    torch.testing.assert_close(out.logits, classifier.head(features))
    assert torch.equal(classifier(x), out.logits)
    assert out.features.shape == (5, 7)


def test_inputs_are_not_changed_without_normalize(x: Tensor) -> None:
    model = Classifier(nn.Flatten(), nn.Linear(6, 3))
    assert torch.equal(model.outputs(x).features, x.flatten(1))


def test_classifier_features_by_layer_name(classifier: Classifier, rng: Rng) -> None:
    x = rng.uniform(torch.empty(5, 2, 4, 4))
    out = classifier.outputs(x)
    for layer in ("logits", "head"):
        assert torch.equal(classifier.outputs(x, layer).features, out.logits)
    assert torch.equal(classifier.outputs(x, "encoder").features, out.features)
    early = classifier.outputs(x, "encoder.layers.0")
    assert torch.equal(early.features, classifier.encoder.layers[0](classifier.normalize(x)).flatten(1))
    assert torch.equal(early.logits, out.logits)
    with pytest.raises(ValueError, match="the model has no layer 'fc'; it has normalize, encoder, "):
        classifier.outputs(x, "fc")


@pytest.mark.parametrize("make", [Answer, TwoHeads, OutputsIsALayer])
def test_adapt_returns_the_input_of_the_last_linear_layer(make: type[nn.Module], x: Tensor) -> None:
    module = make()
    last = {"Answer": "top", "TwoHeads": "main", "OutputsIsALayer": "outputs"}[make.__name__]
    model = adapt(module)
    out = model.outputs(x)
    raw = module(x)
    assert out.features.shape == (5, 4)
    assert torch.equal(out.logits, getattr(raw, "logits", raw))
    assert torch.equal(out.logits, model(x))
    torch.testing.assert_close(getattr(module, last)(out.features), out.logits)


def test_adapt_sequential(plain: nn.Sequential, x: Tensor) -> None:
    model = adapt(plain)
    out = model.outputs(x)
    assert torch.equal(out.features, plain[:3](x))
    assert torch.equal(out.logits, plain(x))
    assert torch.equal(model(x), plain(x))
    assert torch.equal(model.outputs(x, "logits").features, plain(x))
    assert torch.equal(model.outputs(x, "1").features, plain[:2](x))


def test_adapt_with_a_named_layer(plain: nn.Sequential, x: Tensor) -> None:
    assert torch.equal(adapt(plain, "1").outputs(x).features, plain[:2](x))
    assert torch.equal(adapt(plain, "1").outputs(x, "2").features, plain[:3](x))
    assert torch.equal(adapt(plain, "logits").outputs(x).features, plain(x))
    with pytest.raises(ValueError, match="the model has no layer 'fc'; it has 0, 1, 2, 3"):
        adapt(plain, "fc")


def test_adapt_without_linear_has_logits_as_features(rng: Rng) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten())
    x = rng.uniform(torch.empty(5, 2, 4, 4))
    out = adapt(net).outputs(x)
    assert torch.equal(out.logits, net(x))
    assert torch.equal(out.features, out.logits)
    assert torch.equal(adapt(net, "0").outputs(x).features, net[0](x).flatten(1))


def test_features_are_not_overwritten_by_a_later_layer(x: Tensor) -> None:
    """In-place activations must not overwrite captured features."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    assert torch.equal(adapt(net, "1").outputs(x).features, net[1](x.flatten(1)))


def test_adapted_features_carry_gradients(x: Tensor, plain: nn.Sequential) -> None:
    x.requires_grad_()
    for layer in (None, "1", "logits"):
        (grad,) = torch.autograd.grad(adapt(plain).outputs(x, layer).features.sum(), x)
        assert grad.abs().sum() > 0


def test_adapt_returns_models_with_outputs_unchanged(classifier: Classifier, plain: nn.Sequential) -> None:
    assert adapt(classifier) is classifier
    adapted = adapt(plain)
    assert isinstance(adapted, Model)
    assert isinstance(adapted, nn.Module)
    assert adapt(adapted) is adapted
    assert torch.equal(
        adapt(classifier, "head").outputs(torch.zeros(2, 2, 4, 4)).features, classifier(torch.zeros(2, 2, 4, 4))
    )


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (torch.zeros(5), r"returned \(5,\) for 5 inputs but logits of shape \(5, classes\) are needed"),
        (torch.zeros(4, 3), r"returned \(4, 3\) for 5 inputs"),
        (torch.zeros(5, 3, 1), r"returned \(5, 3, 1\) for 5 inputs"),
        ((torch.zeros(5, 3), None), "returned tuple for 5 inputs"),
        (SimpleNamespace(logits=None), "returned NoneType for 5 inputs"),
        ({"logits": torch.zeros(5, 3)}, "returned dict for 5 inputs"),
    ],
)
def test_wrong_outputs_are_refused(out: object, words: str, x: Tensor) -> None:
    model = adapt(Returns(out))
    for ask in (model, model.outputs):
        with pytest.raises(ValueError, match=words) as caught:
            ask(x)
        assert "\n" not in str(caught.value)


def test_layers_without_features_are_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match="layer 'unused' did not run in the forward pass"):
        adapt(TwoHeads(), "unused").outputs(x)
    net = nn.Sequential(Returns((torch.zeros(5, 3), 1)), Returns(torch.zeros(5, 3)))
    with pytest.raises(ValueError, match="layer '0' gave a tuple but features are needed"):
        adapt(net, "0").outputs(x)


@pytest.mark.parametrize("layer", [None, "1"])
def test_hooks_are_removed(layer: str | None, x: Tensor, plain: nn.Sequential) -> None:
    calls: list[int] = []
    plain[1].register_forward_hook(lambda *_: calls.append(1))
    plain[3].register_forward_pre_hook(lambda *_: calls.append(2))

    def hooks() -> list[tuple[int, ...]]:
        return [(*m._forward_hooks, *m._forward_pre_hooks) for m in plain.modules()]

    before = hooks()
    adapt(plain).outputs(x, layer)
    assert calls == [1, 2]
    with pytest.raises(RuntimeError, match="shapes"):
        adapt(plain).outputs(torch.zeros(5, 7), layer)
    assert hooks() == before


def test_normalize_is_per_channel_and_moves_with_the_model(rng: Rng) -> None:
    layer = Normalize((0.5, 0.1, 0.0), (2.0, 0.5, 1.0)).double()
    x = rng.uniform(torch.empty(2, 3, 2, 2, dtype=torch.float64))
    by_hand = torch.stack([(x[:, 0] - 0.5) / 2, (x[:, 1] - 0.1) / 0.5, x[:, 2]], 1)
    torch.testing.assert_close(layer(x), by_hand, atol=1e-7, rtol=0)
    assert layer(x).dtype == torch.float64
    assert functional.mse_loss(layer(x), x) > 0
    assert not list(layer.parameters())
    assert set(layer.state_dict()) == {"mean", "std"}
