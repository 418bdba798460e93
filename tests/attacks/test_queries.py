"""What attacks without gradients share: any callable is a model, and no sample makes more queries than allowed."""

from collections import Counter
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from subjects import MEMBERS, NORMS_OF, Net, build, member
from torch import Tensor

from holdfast.attacks import from_numpy
from holdfast.attacks._queries import QueryAttack
from holdfast.attacks.fab import FAB
from holdfast.attacks.hopskipjump import HopSkipJump
from holdfast.attacks.pgd import PGD
from holdfast.attacks.rays import RayS
from holdfast.attacks.square import Square
from holdfast.attacks.triage import Triage
from holdfast.contracts import Cost, Rows
from holdfast.crafting.microbatch import micro
from holdfast.geometry import NORMS, LInf, Threat
from holdfast.rng import Rng

QUERYING = [(name, norm) for name in MEMBERS if issubclass(member(name), QueryAttack) for norm in NORMS_OF[name]]
EPS = {"linf": 0.05, "l2": 0.3, "l1": 0.6}
HARD = [RayS, HopSkipJump]


def bright(x: Tensor) -> Tensor:
    """Scores of three classes that compare the parts of an image."""
    flat = x.flatten(1)
    third = flat.shape[1] // 3
    return torch.stack([flat[:, :third].sum(1), flat[:, third : 2 * third].sum(1), flat[:, 2 * third :].sum(1)], 1)


def inputs(n: int, *shape: int) -> tuple[Tensor, Tensor]:
    x = Rng(0).fork("x").uniform(torch.empty(n, *shape, dtype=torch.float64))
    return x, bright(x).argmax(1)


def test_the_folder_has_query_attacks() -> None:
    assert {name for name, _ in QUERYING} >= {"square", "rays", "hopskipjump"}


@pytest.mark.parametrize(("name", "norm"), QUERYING)
@settings(max_examples=8)
@given(queries=st.integers(1, 90), n=st.integers(1, 4), size=st.integers(1, 7), eps=st.sampled_from([0.0, 0.1, 1.0]))
def test_no_sample_makes_more_queries_than_allowed(name: str, norm: str, queries: int, n: int, size: int, eps: float):
    x, y = inputs(n, 1, 3, 4)
    asked, told = Counter[int](), 0

    def ask(x: Tensor) -> Tensor:
        nonlocal told
        told += len(x)
        return bright(x)

    def watch(rows: Rows, x_adv: Tensor, loss: Tensor, cost: Cost) -> None:
        asked.update(rows.index.tolist())
        assert cost == Cost(forwards=len(x_adv), backwards=0)

    attack = member(name)(threat=Threat(NORMS[norm], eps * EPS[norm] * 10), queries=queries)
    with micro(size):
        attack(ask, x, y, rng=Rng(0), watch=watch)
    assert sum(asked.values()) == told > 0
    assert max(asked.values()) <= queries


@pytest.mark.parametrize("make", HARD)
def test_decision_based_attacks_need_labels_alone(make: type[RayS]) -> None:
    x, y = inputs(5, 9)
    attack = make(threat=Threat(LInf(), inf), queries=200)
    by_label = attack(lambda x: bright(x).argmax(1), x, y, rng=Rng(0))
    assert torch.equal(by_label, attack(bright, x, y, rng=Rng(0)))
    assert (bright(by_label).argmax(1) != y).all()


def test_square_refuses_labels() -> None:
    x, y = inputs(2, 9)
    with pytest.raises(ValueError, match=r"returned labels but Square needs scores .*use RayS or HopSkipJump"):
        Square(threat=Threat(LInf(), 0.1))(lambda x: bright(x).argmax(1), x, y, rng=Rng(0))


@pytest.mark.parametrize(
    "answer",
    [lambda x: bright(x)[:-1], lambda x: bright(x)[:, 0], lambda x: bright(x)[:, None], lambda x: bright(x).tolist()],
)
def test_other_answers_are_refused(answer) -> None:
    x, y = inputs(3, 9)
    with pytest.raises(ValueError, match=r"the model returned .* but scores \(3, classes\) or integer labels \(3,\)"):
        RayS(threat=Threat(LInf(), 0.1))(answer, x, y, rng=Rng(0))


def test_labels_below_zero_are_refused_also_without_scores() -> None:
    x, y = inputs(3, 9)
    with pytest.raises(ValueError, match=r"labels span -1\.\."):
        RayS(threat=Threat(LInf(), 0.1))(
            lambda x: bright(x).argmax(1), x, y.index_fill(0, torch.tensor([1]), -1), rng=Rng(0)
        )


@pytest.mark.parametrize(("name", "norm"), QUERYING)
def test_a_sample_without_finite_scores_harms_no_other(name: str, norm: str) -> None:
    x, y = inputs(4, 9)
    x[1] = 0.123
    attack = build(name, Threat(NORMS[norm], EPS[norm]))

    def ask(x: Tensor) -> Tensor:
        broken = (x.flatten(1) - 0.123).abs().amax(1) < 0.06
        return torch.where(broken[:, None], torch.nan, bright(x))

    healthy = torch.tensor([0, 2, 3])
    expected = attack(bright, x, y, rng=Rng(0))[healthy]
    assert torch.equal(attack(ask, x, y, rng=Rng(0))[healthy], expected)


def test_scikit_learn_classifiers_are_attacked_through_numpy() -> None:
    x, y = inputs(60, 3, 3)
    classifier = LogisticRegression().fit(x.flatten(1).numpy(), y.numpy())
    label = torch.from_numpy(classifier.predict(x.flatten(1).numpy()))
    for attack, predict in (
        (Square(threat=Threat(LInf(), 0.3), queries=100), classifier.predict_proba),
        (RayS(threat=Threat(LInf(), 0.3), queries=100), classifier.predict),
    ):
        x_adv = attack(from_numpy(predict), x, label, rng=Rng(0))
        fooled = classifier.predict(x_adv.flatten(1).numpy()) != label.numpy()
        assert fooled.mean() > 0.8
        assert attack.threat.contains(x_adv, x).all()


def test_functions_of_numpy_images_keep_the_shape() -> None:
    seen: list[tuple[int, ...]] = []
    answer = from_numpy(lambda array: seen.append(array.shape) or np.zeros((len(array), 2)), flatten=False)
    assert answer(torch.zeros(2, 1, 3, 3)).shape == (2, 2)
    assert seen == [(2, 1, 3, 3)]


@pytest.mark.parametrize("make", [Square, RayS, HopSkipJump])
def test_budgets_and_norms_that_cannot_work_are_refused(make: type[Square]) -> None:
    with pytest.raises(ValueError, match="queries is 0 but an attack needs at least one"):
        make(threat=Threat(LInf(), 0.1), queries=0)
    with pytest.raises(ValueError, match="norm is 'l0' but it must be one of"):
        make(threat=Threat(NORMS["l0"], 1))


@pytest.mark.parametrize("make", [Square, HopSkipJump])
def test_targeted_attacks_reach_the_target(make: type[Square]) -> None:
    x, y = inputs(6, 1, 3, 3)
    target = (y + 1) % 3
    start = torch.zeros_like(x).flatten(1)
    for i, label in enumerate(target.tolist()):
        start[i, 3 * label : 3 * label + 3] = 1
    rows = Rows(y, torch.arange(6), {"target": target, "start": start.reshape(x.shape)})
    attack = make(threat=Threat(LInf(), 0.9), queries=300, targeted=True)
    assert torch.equal(bright(attack(bright, x, rows, rng=Rng(0))).argmax(1), target)
    with pytest.raises(ValueError, match="6 targets are the true label"):
        attack(bright, x, Rows(y, torch.arange(6), {"target": y, "start": x}), rng=Rng(0))


def test_gradient_attacks_are_no_black_box_attacks() -> None:
    black = {name for name in MEMBERS if build(name, Threat(NORMS[NORMS_OF[name][0]], 0.1), source=Net()).black_box}
    assert {"square", "rays", "hopskipjump", "noise", "transfer"} <= black
    assert not black & {"pgd", "fgsm", "mim", "bim", "cw_linf", "linearity", "feature_norm"}


def test_class_names_are_refused() -> None:
    names = from_numpy(lambda array: np.array(["cat"] * len(array)))
    with pytest.raises(ValueError, match="the function returned <U3 but scores or class indices from 0 are needed"):
        names(torch.zeros(2, 3))


@pytest.mark.parametrize("attack", [PGD, FAB, Triage])
def test_gradient_attacks_refuse_a_callable(attack: type[PGD]) -> None:
    x, y = torch.full((2, 3), 0.5), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"the model is a function but gradients need a torch\.nn\.Module"):
        attack(threat=Threat(LInf(), 0.1))(from_numpy(lambda array: array), x, y, rng=Rng(0))  # type: ignore[arg-type]
