"""The judge recomputes containment, label and distance from the returned points alone."""

from dataclasses import dataclass
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from holdfast.contracts import Rows, Watch
from holdfast.data import Split
from holdfast.evaluation.judge import DRAWS, accuracy, drawn, judge, predict, randomized
from holdfast.geometry import L2, LInf, Threat
from holdfast.rng import Rng

THREAT = Threat(LInf(), 0.1)
CPU = torch.device("cpu")


class Bright(nn.Module):
    """Class 1 where the mean of the pixels is above one half, else class 0."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1)
        return torch.stack([0.5 - mean, mean - 0.5], 1)


def images(*means: float) -> Tensor:
    return torch.tensor(means)[:, None, None, None].expand(-1, 1, 2, 2).clone()


def test_misclassified_point_inside_the_threat_counts_as_fooled() -> None:
    x, x_adv, y = images(0.45, 0.45, 0.55), images(0.55, 0.46, 0.46), torch.tensor([0, 0, 1])
    verdict = judge(Bright(), x, x_adv, y, THREAT, Rng(0))
    assert verdict.fooled.tolist() == [True, False, True]
    assert verdict.label.tolist() == [1, 0, 0]
    assert verdict.inside.tolist() == [True, True, True]
    assert verdict.distance.tolist() == pytest.approx([0.1, 0.01, 0.09], rel=1e-5)


@pytest.mark.parametrize("value", [0.56, 0.9, 1.5, nan, inf, -inf])
def test_point_outside_the_threat_does_not_count(value: float) -> None:
    verdict = judge(Bright(), images(0.45), images(value), torch.tensor([0]), THREAT, Rng(0))
    assert verdict.fooled.tolist() == [False]
    assert verdict.inside.tolist() == [False]
    assert verdict.label.tolist() == [0]  # the prediction for the clean image
    assert verdict.distance.isnan().all()


def test_point_outside_the_box_does_not_count() -> None:
    x, x_adv = images(0.95, 0.95), images(1.0, 1.0)
    x_adv[1, 0, 0, 0] = 1 + 1e-6
    verdict = judge(Bright(), x, x_adv, torch.tensor([0, 0]), THREAT, Rng(0))
    assert verdict.inside.tolist() == [True, False]


def test_one_pixel_outside_disqualifies_only_its_sample() -> None:
    x, x_adv = images(0.45, 0.45), images(0.55, 0.55)
    x_adv[0, 0, 1, 1] = nan
    verdict = judge(Bright(), x, x_adv, torch.tensor([0, 0]), THREAT, Rng(0))
    assert verdict.fooled.tolist() == [False, True]


@pytest.mark.parametrize("shape", [(2, 1, 2, 2), (1, 2, 2), (1, 1, 2, 1), (1, 4)])
def test_adversarial_examples_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"the attack returned shape .* for inputs of shape \(1, 1, 2, 2\)"):
        judge(Bright(), images(0.4), torch.full(shape, 0.4), torch.tensor([0]), THREAT, Rng(0))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-0.2, 0.2), st.booleans()), max_size=6))
def test_verdicts_equal_a_loop_over_samples(samples: list[tuple[float, float, bool]]) -> None:
    threat = Threat(L2(), 0.2)  # moving all four pixels by d has l2 norm 2d
    x = images(*(mean for mean, _, _ in samples)) if samples else torch.empty(0, 1, 2, 2)
    x_adv = (x + torch.tensor([d for _, d, _ in samples])[:, None, None, None]) if samples else x
    y = torch.tensor([int(label) for _, _, label in samples], dtype=torch.int64)
    verdict = judge(Bright(), x, x_adv, y, threat, Rng(0))
    for i in range(len(samples)):
        moved = (x_adv[i].double() - x[i].double()).square().sum().sqrt().item()
        inside = moved <= 0.2 * (1 + 1e-5) + 1e-7 and x_adv[i].min() >= 0 and x_adv[i].max() <= 1
        label = int(Bright()((x_adv if inside else x)[i : i + 1]).argmax())
        assert verdict.inside[i] == inside
        assert verdict.label[i] == label
        assert verdict.fooled[i] == (inside and label != y[i])
        assert verdict.distance[i].isnan() if not inside else verdict.distance[i] == pytest.approx(moved)


@pytest.mark.parametrize("logits", [[nan, 0.0], [0.0, nan], [inf, 0.0], [-inf, 0.0], [nan, nan]])
def test_nonfinite_logits_give_label_minus_one(logits: list[float]) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor(logits).expand(len(x), 2)

    for label in (0, 1):
        verdict = judge(Broken(), images(0.5), images(0.5), torch.tensor([label]), THREAT, Rng(0))
        assert verdict.label.tolist() == [-1]
        assert verdict.fooled.tolist() == [True]


class Noisy(nn.Module):
    """A randomized model that records its draws."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.drawn.append(torch.randn(len(x), 2))
        return self.drawn[-1]


def test_randomized_model_is_judged_with_fresh_noise() -> None:
    model, x, y, rng = Noisy(), images(*[0.5] * 8), torch.zeros(8, dtype=torch.int64), Rng(3)
    state = torch.get_rng_state()
    first = judge(model, x, x, y, THREAT, rng.fork("judge"))
    again = judge(model, x, x, y, THREAT, rng.fork("judge"))
    attack = predict(model, x, rng)  # the prediction that an attack with this rng sees
    assert torch.equal(model.drawn[0], model.drawn[1])
    assert torch.equal(first.label, again.label)
    assert not torch.equal(model.drawn[0], model.drawn[2])
    assert attack.shape == (8,)
    assert torch.equal(torch.get_rng_state(), state)


class Jitter(nn.Module):
    """Class 1 where the mean of the pixels plus uniform noise of the given width is above one half."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(1) + self.width * (torch.rand(len(x)) - 0.5)
        return torch.stack([0.5 - mean, mean - 0.5], 1)


def test_every_draw_of_a_randomized_model_counts() -> None:
    x, y, model, rng = images(*[0.1, 0.48, 0.9] * 50), torch.tensor([0, 0, 0] * 50), Jitter(0.1), Rng(5)
    verdict = judge(model, x, x, y, THREAT, rng, draws=DRAWS)
    labels = torch.stack([predict(model, x, rng.fork(f"draw {n}")) for n in range(DRAWS)], 1)
    assert torch.equal(verdict.right, labels == 0)
    assert torch.equal(verdict.fooled, (labels != 0).any(1))
    assert torch.equal(verdict.label, (labels != 0).any(1).long())
    share = verdict.right.double().mean(1).reshape(50, 3).mean(0)
    assert share.tolist() == [1, pytest.approx(0.7, abs=0.08), 0]  # 0.48 + 0.1 (u - 0.5) is below 0.5 for u < 0.7
    assert verdict.fooled.reshape(50, 3).double().mean(0)[1] > 0.9


def test_one_draw_is_the_prediction() -> None:
    x, y, model, rng = images(*[0.48] * 30), torch.zeros(30, dtype=torch.int64), Jitter(0.1), Rng(5)
    verdict = judge(model, x, x, y, THREAT, rng)
    assert torch.equal(verdict.label, predict(model, x, rng))
    assert torch.equal(verdict.right, (verdict.label == 0)[:, None])
    assert torch.equal(drawn(model, x, rng, 1)[:, 0], verdict.label)


@pytest.mark.parametrize(
    ("model", "expected"),
    [(Jitter(0.1), True), (Jitter(0.0), False), (Bright(), False), (nn.Dropout(0.5), False), (Noisy(), True)],
)
def test_a_model_is_randomized_if_two_draws_differ(model: nn.Module, expected: bool) -> None:
    x, state = images(*[0.5] * 20), torch.get_rng_state()
    whole = nn.Sequential(model, nn.Flatten())
    assert randomized(whole, x, Rng(0)) == expected
    assert not randomized(whole, x[:0], Rng(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_of_the_models_own_generator_is_noticed_and_nan_is_not_noise() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return torch.rand(len(x), 2, generator=self.generator)

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 2), nan)

    assert randomized(Own(), images(0.5), Rng(0))
    assert not randomized(Broken(), images(0.5), Rng(0))


def test_model_in_train_mode_is_judged_in_eval_mode_and_restored() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    model[3].eval()  # set by the user, must be restored
    x = torch.rand(16, 1, 2, 2)
    modes, state = [m.training for m in model.modules()], {k: v.clone() for k, v in model.state_dict().items()}
    label = predict(model, x, Rng(0))
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(label, model.eval()(x).argmax(1))


class Watching(nn.Module):
    """Records the precision settings of its forward pass."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.seen: list[tuple[torch.dtype, torch.dtype, str, bool]] = []
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        product = functional.linear(x.flatten(1), torch.ones(2, 4))
        precise = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self.seen.append((x.dtype, product.dtype, *precise))
        if self.fails:
            raise RuntimeError("no")
        return product


@pytest.mark.parametrize("fails", [False, True])
def test_judge_computes_in_float32_and_restores_precision_settings(fails: bool) -> None:
    model, before = Watching(fails), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if fails:
                with pytest.raises(RuntimeError, match="no"):
                    predict(model, images(0.5).double(), Rng(0))
            else:
                predict(model, images(0.5).double(), Rng(0))
            assert torch.is_autocast_enabled("cpu")
            assert functional.linear(torch.ones(1, 2), torch.ones(1, 2)).dtype == torch.bfloat16
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)
    assert model.seen == [(torch.float32, torch.float32, "highest", False)]


@pytest.mark.parametrize("classify", [lambda x: Bright()(x), lambda x: Bright()(x).argmax(1)], ids=["scores", "labels"])
def test_any_callable_is_judged_in_the_type_of_its_inputs(classify) -> None:
    seen: list[torch.dtype] = []

    def ask(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return classify(x)

    x, x_adv, y = images(0.45, 0.45).double(), images(0.55, 0.46).double(), torch.tensor([0, 0])
    verdict = judge(ask, x, x_adv, y, Threat(LInf(), 0.11), Rng(0))
    assert verdict.fooled.tolist() == [True, False]
    assert seen == [torch.float64]


def test_judge_accepts_an_empty_batch() -> None:
    empty, none = torch.empty(0, 1, 2, 2), torch.empty(0, dtype=torch.int64)
    verdict = judge(Bright(), empty, empty, none, THREAT, Rng(0))
    assert [len(column) for column in (verdict.fooled, verdict.distance, verdict.label, verdict.inside)] == [0] * 4


@dataclass
class Liar:
    """An attack that fools some samples, leaves the threat with others, and records which samples it was given."""

    threat: Threat
    by: float
    given: list[int]

    def at(self, eps: float) -> "Liar":
        return self

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | Rows, *, rng: Rng, watch: Watch | None = None
    ) -> Tensor:
        assert isinstance(y, Rows)
        self.given += y.index.tolist()
        return x + self.by


@pytest.mark.parametrize(("by", "robust"), [(0.08, 1 / 4), (0.3, 2 / 4), (0.0, 2 / 4)])
def test_accuracy_counts_the_verdicts_of_the_judge(by: float, robust: float) -> None:
    split = Split(images(0.45, 0.2, 0.1, 0.9), torch.tensor([0, 0, 1, 0]), torch.tensor([10, 11, 12, 13]))
    attack = Liar(THREAT, by, [])
    assert accuracy(Bright(), split, attack, CPU, Rng(0)) == (2 / 4, robust)
    assert attack.given == [10, 11]  # misclassified samples are not attacked


def test_accuracy_is_zero_if_all_samples_are_misclassified() -> None:
    split = Split(images(0.1, 0.2), torch.tensor([1, 1]), torch.tensor([0, 1]))
    assert accuracy(Bright(), split, Liar(THREAT, 0.0, []), CPU, Rng(0)) == (0.0, 0.0)
