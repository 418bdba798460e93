"""Ensembles, diverse inputs and smoothed gradients agree with plain loops; bad options are refused."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from subjects import Affine, Counted, Net, samples
from torch import Tensor, nn
from torch.nn import functional

from holdfast.attacks._images import Diversity, gaussian_smoothing
from holdfast.attacks.fgsm import FGSM
from holdfast.attacks.latent import Latent
from holdfast.attacks.mim import MIM
from holdfast.attacks.noise import Noise
from holdfast.attacks.pgd import PGD
from holdfast.attacks.transfer import Transfer
from holdfast.contracts import Attack, Cost, Rows
from holdfast.crafting import microbatch
from holdfast.geometry import LInf, Threat
from holdfast.models.classifier import adapt
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)
INNER = MIM(threat=THREAT, steps=4, keep="last")


def nets(n: int) -> list[Net]:
    return [Net(seed=seed).double().eval() for seed in range(1, n + 1)]


def resized(x: Tensor, smallest: float, u: Tensor) -> tuple[Tensor, int]:
    """One image resized by torch's interpolation and padded, for uniform numbers (4,) of a sample, and its new size."""
    height, width = x.shape[1:]
    sizes, places = [], []
    for length, place in ((height, u[2]), (width, u[3])):
        choices = [size for size in range(1, length) if size >= smallest * length - 1e-9]
        size = choices[int(u[1] * len(choices))]
        sizes.append(size)
        places.append(int(place * (length - size + 1)))
    small = functional.interpolate(x[None], size=sizes, mode="bilinear", align_corners=False)
    (top, left), (h, w) = places, sizes
    return functional.pad(small, [left, width - w - left, top, height - h - top])[0], sizes[0]


@pytest.mark.parametrize(("shape", "smallest"), [((3, 12, 12), 0.9), ((1, 28, 28), 0.5), ((2, 9, 16), 0.6)])
def test_diversity_equals_a_loop_over_images(shape: tuple[int, ...], smallest: float, rng: Rng) -> None:
    x = rng.fork("x").uniform(torch.empty(20, *shape, dtype=torch.float64))
    rows, t = Rows(torch.zeros(20, dtype=torch.int64), torch.arange(20) + 5), torch.arange(20) % 3
    found = Diversity(0.5, smallest, rng)(x, rows, t, 1)
    u = rng.fork(1).at(rows.index).at(t).uniform(x.new_empty(20, 4))
    sizes = set()
    for i in range(20):
        image, size = resized(x[i], smallest, u[i])
        changed = bool(u[i, 0] < 0.5)
        torch.testing.assert_close(found[i], image if changed else x[i], rtol=0, atol=1e-12)
        sizes |= {size} if changed else set()
    assert 4 < int((u[:, 0] < 0.5).sum()) < 16
    assert len(sizes) > 1 or smallest == 0.9


def test_diversity_draws_every_size_and_place_and_the_stated_share(rng: Rng) -> None:
    n = 4000
    x = torch.ones(n, 1, 5, 5, dtype=torch.float64)
    rows = Rows(torch.zeros(n, dtype=torch.int64), torch.arange(n))
    found = Diversity(0.7, 0.6, rng)(x, rows, torch.zeros(n, dtype=torch.int64), 0)
    shown = (found > 0.5).squeeze(1)
    assert set(found.unique().tolist()) <= {0.0, 1.0}  # weights sum to one: a constant image stays constant
    boxes = Counter((int(s.any(1).sum()), int(s.any(1).long().argmax()), int(s.any(0).long().argmax())) for s in shown)
    assert boxes.pop((5, 0, 0)) / n == pytest.approx(0.3, abs=0.03)
    assert set(boxes) == {(3, i, j) for i in range(3) for j in range(3)} | {(4, i, j) for i in (0, 1) for j in (0, 1)}
    assert sum(boxes[4, i, j] for i in (0, 1) for j in (0, 1)) / n == pytest.approx(0.35, abs=0.03)


def test_diversity_of_one_pixel_is_the_image(rng: Rng) -> None:
    x = rng.uniform(torch.empty(3, 2, 1, 1))
    rows = Rows(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    assert torch.equal(Diversity(1.0, 0.5, rng)(x, rows, rows.y, 0), x)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_smoothing_equals_a_loop_over_pixels(size: int, rng: Rng) -> None:
    grad = rng.normal(torch.empty(2, 3, 5, 6, dtype=torch.float64))
    at = [6 * i / (size - 1) - 3 if size > 1 else 0.0 for i in range(size)]
    weight = torch.tensor([[float(torch.tensor(-(a * a + b * b) / 2.0).exp()) for b in at] for a in at])
    weight = weight.double() / weight.sum()
    expected, half = torch.zeros_like(grad), size // 2
    for i in range(5):
        for j in range(6):
            for a in range(size):
                for b in range(size):
                    row, column = i + a - half, j + b - half
                    if 0 <= row < 5 and 0 <= column < 6:
                        expected[:, :, i, j] += weight[a, b] * grad[:, :, row, column]
    torch.testing.assert_close(gaussian_smoothing(grad, size), expected, rtol=0, atol=1e-6)


def test_the_kernel_ends_at_three_standard_deviations() -> None:
    """Seven weights of the normal density at -3, ..., 3, as in the code of TI."""
    impulse = torch.zeros(1, 1, 13, 13, dtype=torch.float64)
    impulse[0, 0, 6, 6] = 1
    kernel = gaussian_smoothing(impulse, 7)[0, 0, 3:10, 3:10]
    density = torch.exp(-torch.arange(-3.0, 4.0).double().square() / 2)
    expected = torch.outer(density, density) / density.sum() ** 2
    torch.testing.assert_close(kernel, expected, rtol=1e-12, atol=0)


def written(net: nn.Module, x: Tensor, rows: Rows, rng: Rng, translation: int) -> Tensor:
    """MIM with diverse inputs and smoothed gradients, written out for one sample at a time."""
    found = []
    for i in range(len(x)):
        clean, row = x[i : i + 1], rows.take(torch.tensor([i]))
        x_adv, g = clean.clone(), torch.zeros_like(clean)
        for step in range(4):
            leaf = x_adv.clone().requires_grad_()
            u = rng.fork("diversity").fork(0).at(row.index).at(torch.tensor([step])).uniform(x.new_empty(1, 4))[0]
            seen = resized(leaf[0], 0.5, u)[0][None] if u[0] < 0.5 else leaf
            loss = functional.cross_entropy(net(seen), row.y)
            grad = gaussian_smoothing(torch.autograd.grad(loss, leaf)[0], translation)
            g = g + grad / grad.abs().mean()
            x_adv = torch.minimum(torch.maximum(x_adv + 0.0625 * g.sign(), clean - 0.1), clean + 0.1).clamp(0, 1)
        found.append(x_adv)
    return torch.cat(found)


@pytest.mark.parametrize("translation", [1, 3])
def test_mim_with_both_options_equals_a_loop(translation: int, rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microbatch, "size", lambda: 4)
    net = Net(seed=1).double().eval()
    x, rows = samples(9, rng, net)
    attack = Transfer(source=net, attack=INNER, diversity=0.5, smallest=0.5, translation=translation)
    found = attack(Net().double(), x, rows, rng=rng)
    torch.testing.assert_close(found, written(net, x, rows, rng, translation), rtol=0, atol=1e-9)
    assert not torch.allclose(found, replace(attack, diversity=0.0, translation=1)(net, x, rows, rng=rng))


def test_an_option_that_is_off_changes_no_bit(rng: Rng) -> None:
    source = Net(seed=1)
    x, rows = samples(9, rng, Net().double())
    x = x.float()
    expected = INNER(source, x, rows, rng=rng)
    assert torch.equal(Transfer(source=source, attack=INNER)(Net(), x, rows, rng=rng), expected)
    assert torch.equal(Transfer(source=[source], attack=INNER)(Net(), x, rows, rng=rng), expected)


class Mean(nn.Module):
    """The mean of the logits, written out."""

    def __init__(self, models: list[Net]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        total = self.models[0](x)
        for model in self.models[1:]:
            total = total + model(x)
        return total / len(self.models)


@pytest.mark.parametrize("attack", [INNER, PGD(threat=THREAT, steps=3, keep="worst")])
def test_an_ensemble_is_attacked_through_its_mean_logits(attack: Attack, rng: Rng) -> None:
    models = nets(3)
    x, rows = samples(9, rng, models[0])
    found = Transfer(source=models, attack=attack)(Net().double(), x, rows, rng=rng)
    torch.testing.assert_close(found, attack(Mean(models), x, rows, rng=rng), rtol=0, atol=1e-9)


def test_a_linear_ensemble_has_the_mean_weights(rng: Rng) -> None:
    """FGSM on two affine models with two classes goes along the sign of the mean difference of their weights."""
    models = [Affine(rng.fork(i).normal(torch.empty(2, 6)), torch.zeros(2)) for i in range(2)]
    x = 0.2 + 0.6 * rng.fork("x").uniform(torch.empty(5, 6))
    y = torch.tensor([0, 1, 0, 1, 1])
    found = Transfer(source=models, attack=FGSM(threat=THREAT))(models[0], x, y, rng=rng)
    away = sum(model.weight.detach()[1] - model.weight.detach()[0] for model in models).sign()
    torch.testing.assert_close(found, x + 0.1 * torch.where(y[:, None] == 0, away, -away))


def test_an_ensemble_of_one_model_twice_is_that_model(rng: Rng) -> None:
    net = Net(seed=1).double()
    x, rows = samples(9, rng, net)
    found = Transfer(source=[net, net], attack=INNER)(net, x, rows, rng=rng)
    torch.testing.assert_close(found, INNER(net, x, rows, rng=rng), rtol=0, atol=1e-9)


def test_every_model_of_an_ensemble_is_restored_and_counted(rng: Rng) -> None:
    sources = [Counted(Net(seed=seed).double()) for seed in (1, 2, 3)]
    target = Counted(Net().double())
    x, rows = samples(9, rng, target.module)
    costs: list[Cost] = []
    attack = Transfer(source=sources, attack=INNER, diversity=0.5, translation=3)
    attack(target, x, rows, rng=rng, watch=lambda rows, x_adv, loss, cost: costs.append(cost))
    assert sum(costs, Cost()) == sum((source.cost for source in sources), Cost())
    assert not target.sizes
    assert all(module.training for source in sources for module in source.modules())
    assert all(p.requires_grad for source in sources for p in source.parameters())


def test_a_result_does_not_depend_on_the_other_samples(rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Transfer(source=nets(2), attack=PGD(threat=THREAT, steps=3, keep="worst"), diversity=0.5, translation=3)
    x, rows = samples(7, rng, Net().double())
    together = attack(nets(1)[0], x, rows, rng=rng)
    monkeypatch.setattr(microbatch, "size", lambda: 3)
    order = torch.tensor([3, 6, 0, 5])
    some = attack(nets(1)[0], x[order], rows.take(order), rng=rng)
    torch.testing.assert_close(some, together[order], rtol=0, atol=1e-9)
    other = attack(nets(1)[0], x, rows, rng=rng.fork("other"))
    assert not torch.equal(other, together)


def test_diversity_alone_draws_from_the_rng(rng: Rng) -> None:
    attack = Transfer(source=Net(seed=1).double(), attack=INNER, diversity=0.5)
    x, rows = samples(9, rng, Net().double())
    first, same, other = (attack(Net().double(), x, rows, rng=Rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("options", [{"diversity": 0.5}, {"translation": 3}])
def test_options_for_images_refuse_other_inputs(options: dict[str, float], rng: Rng) -> None:
    attack = Transfer(source=nn.Linear(6, 3), attack=INNER, **options)
    x = rng.uniform(torch.empty(4, 6))
    with pytest.raises(ValueError, match=rf"{next(iter(options))} needs images of shape .* x has shape \(4, 6\)"):
        attack(nn.Linear(6, 3), x, torch.tensor([0, 1, 2, 0]), rng=rng)


@pytest.mark.parametrize("options", [{"diversity": 0.5}, {"translation": 3}])
def test_options_refuse_attacks_without_the_loop(options: dict[str, float], rng: Rng) -> None:
    attack = Transfer(source=Net(seed=1).double(), attack=Noise(threat=THREAT), **options)
    x, rows = samples(4, rng, Net().double())
    with pytest.raises(
        ValueError, match="transfer with diversity or translation needs an attack that follows"
    ) as found:
        attack(Net().double(), x, rows, rng=rng)
    assert "\n" not in str(found.value)


def test_models_with_other_classes_are_refused(rng: Rng) -> None:
    attack = Transfer(source=[nn.Linear(6, 3), nn.Linear(6, 2)], attack=INNER)
    with pytest.raises(ValueError, match="the sources have 2 and 3 classes"):
        attack(nn.Linear(6, 3), rng.uniform(torch.empty(2, 6)), torch.tensor([0, 1]), rng=rng)


def test_an_attack_on_features_sees_the_features_of_all_sources(rng: Rng) -> None:
    models = nets(2)
    x, rows = samples(5, rng, models[0])
    inner = Latent(threat=THREAT, steps=3, keep="last")
    found = Transfer(source=models, attack=inner)(models[0], x, rows, rng=rng)

    @torch.no_grad()
    def moved(x_adv: Tensor) -> Tensor:
        pairs = [(adapt(model).outputs(x_adv).features, adapt(model).outputs(x).features) for model in models]
        return torch.stack([(a - b).square().sum() for a, b in pairs]).sum()

    assert moved(found) > 1.5 * moved(Noise(threat=THREAT)(models[0], x, rows, rng=rng))
