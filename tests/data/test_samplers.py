from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from holdfast.data.samplers import Order, Pool, Positives

labels = st.lists(st.integers(0, 3), min_size=1, max_size=14)


@given(n=st.integers(1, 60), batch=st.integers(1, 70), epoch=st.integers(0, 5))
def test_order_is_a_permutation_cut_into_batches(n, batch, epoch):
    order = Order(n, batch, seed=4)
    rows = order.epoch(epoch)
    assert rows.shape == ((n // batch, batch) if n >= batch else (1, n))
    assert len(rows) == order.steps
    assert len(set(rows.flatten().tolist())) == rows.numel()
    assert set(rows.flatten().tolist()) <= set(range(n))


def test_order_depends_on_seed_and_epoch_alone():
    first = Order(50, 50, seed=1)
    assert torch.equal(first.epoch(3), Order(50, 50, seed=1).epoch(3))
    assert torch.equal(first.epoch(3).flatten(), Order(50, 10, seed=1).epoch(3).flatten())
    assert not torch.equal(first.epoch(3), first.epoch(4))
    assert not torch.equal(first.epoch(3), Order(50, 50, seed=2).epoch(3))


@given(n=st.integers(1, 40), size=st.integers(1, 50))
def test_pool_covers_all_samples_before_repeating_one(n, size):
    pool = Pool(n, size, seed=9)
    walk = n // min(n, size)
    draws = [pool.draw(step) for step in range(2 * walk)]
    for start in (0, walk):
        seen = torch.cat(draws[start : start + walk]).tolist()
        assert len(seen) == len(set(seen)) == walk * min(n, size)
        assert set(seen) <= set(range(n))


def test_pool_has_no_state_and_is_independent_of_the_order():
    pool = Pool(30, 30, seed=1)
    pool.draw(8)
    assert torch.equal(pool.draw(2), Pool(30, 30, seed=1).draw(2))
    assert not torch.equal(pool.draw(2), pool.draw(3))
    assert not torch.equal(pool.draw(2), Order(30, 30, seed=1).epoch(2)[0])


@pytest.mark.parametrize("make", [Order, Pool])
@pytest.mark.parametrize(("n", "size"), [(0, 4), (4, 0), (4, -1)])
def test_empty_samplers_are_refused(make, n, size):
    with pytest.raises(ValueError, match="must be at least 1"):
        make(n, size, seed=0)


def walk(queue, y, steps, seed=0, batch=5):
    """Draw random anchors and their positives."""
    source = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        anchor = torch.randint(len(y), (batch,), generator=source)
        yield anchor, queue.draw(y[anchor], anchor)


@given(y=labels, seed=st.integers(0, 1000))
def test_a_positive_has_the_class_of_its_anchor_and_is_another_sample(y, seed):
    y = torch.tensor(y)
    sizes = y.bincount()
    for anchor, drawn in walk(Positives(y, seed), y, steps=12):
        assert torch.equal(y[drawn], y[anchor])
        assert torch.equal(drawn == anchor, sizes[y[anchor]] == 1)


@given(y=labels, seed=st.integers(0, 1000))
def test_positives_do_not_repeat_until_a_class_is_exhausted(y, seed):
    y = torch.tensor(y)
    sizes = y.bincount().tolist()
    queue, drawn = Positives(y, seed), Counter()
    for step in range(60):
        anchor = torch.randint(len(y), (1,), generator=torch.Generator().manual_seed(step))
        label, before = int(y[anchor]), queue.state()
        got = int(queue.draw(y[anchor], anchor))
        left = [i for i in range(len(y)) if y[i] == label and i not in drawn]
        if left == [int(anchor)] and sizes[label] > 1:  # only the anchor is left, so all classes are shuffled early
            drawn = Counter()
        drawn[got] += 1
        assert max(drawn.values()) == 1
        of_class = sum(int(y[i]) == label for i in drawn)
        ended = of_class == sizes[label]
        if ended:
            drawn = Counter()
        fresh = [sum(sizes[:c]) for c in range(len(sizes))]
        assert (queue.state()["next"].tolist() == fresh) == (not drawn)
        assert queue.state()["turn"] - before["turn"] == (left == [int(anchor)] and sizes[label] > 1) + ended


def test_every_round_draws_the_whole_class_in_another_order():
    y = torch.zeros(30, dtype=torch.int64)
    queue, outsider = Positives(y, seed=3), torch.full((30,), -1)
    rounds = [queue.draw(y, outsider).tolist() for _ in range(3)]
    assert all(sorted(one) == list(range(30)) for one in rounds)
    assert len({tuple(one) for one in rounds}) == 3


def test_all_classes_are_shuffled_when_one_is_exhausted():
    y = torch.tensor([0] * 2 + [1] * 20)
    queue, no_anchor = Positives(y, seed=0), torch.tensor([-1])
    ones = queue.draw(torch.ones(15).long(), no_anchor.expand(15))
    assert queue.state()["next"].tolist() == [0, 17]
    queue.draw(torch.zeros(2).long(), no_anchor.expand(2))
    assert queue.state()["next"].tolist() == [0, 2]
    again = queue.draw(torch.ones(15).long(), no_anchor.expand(15))
    assert set(ones.tolist()) & set(again.tolist())


@pytest.mark.parametrize("stop", range(0, 30, 3))
def test_a_restored_sampler_continues_identically(stop):
    y = torch.tensor([0, 1, 1, 2, 2, 2, 2, 0, 1, 2])
    whole = [drawn.tolist() for _, drawn in walk(Positives(y, seed=7), y, steps=30)]

    first, second = Positives(y, seed=7), Positives(y, seed=7)
    steps = walk(first, y, steps=30)
    head = [next(steps)[1].tolist() for _ in range(stop)]
    second.restore(first.state())
    anchors = [anchor for anchor, _ in walk(Positives(y, seed=0), y, steps=30)][stop:]
    assert head + [second.draw(y[anchor], anchor).tolist() for anchor in anchors] == whole


def test_state_is_a_copy_of_tensors_and_ints():
    y = torch.tensor([0, 1, 1, 0, 1])
    queue = Positives(y, seed=2)
    state = queue.state()
    assert {name: type(value) for name, value in state.items()} == {"turn": int, "order": Tensor, "next": Tensor}
    kept = {name: torch.as_tensor(value).tolist() for name, value in state.items()}
    queue.draw(y, torch.arange(5))
    assert kept == {name: torch.as_tensor(value).tolist() for name, value in state.items()}
    assert kept != {name: torch.as_tensor(value).tolist() for name, value in queue.state().items()}


def test_drawing_for_no_anchors_gives_no_positions():
    none = Positives(torch.tensor([0, 1]), seed=0).draw(torch.tensor([]).long(), torch.tensor([]).long())
    assert none.shape == (0,)
    assert none.dtype == torch.int64


@pytest.mark.parametrize("label", [1, 3, -1])
def test_a_class_without_samples_is_refused(label):
    with pytest.raises(ValueError, match=f"a positive of class {label} was asked for but the split has no sample"):
        Positives(torch.tensor([0, 2, 2]), seed=0).draw(torch.tensor([label]), torch.tensor([0]))


def broken_states():
    state = Positives(torch.tensor([0, 0, 1, 1]), seed=0).state()
    order, following = state["order"], state["next"]
    yield "another size", {**state, "order": order[:3]}
    yield "not a permutation", {**state, "order": torch.tensor([0, 0, 2, 3])}
    yield "classes mixed", {**state, "order": torch.tensor([0, 2, 1, 3])}
    yield "not whole numbers", {**state, "order": order.float()}
    yield "another number of classes", {**state, "next": torch.tensor([0, 2, 4])}
    yield "beyond the class", {**state, "next": following + 2}
    yield "before the class", {**state, "next": following - 1}
    yield "turn missing", {"order": order, "next": following}
    yield "nothing", {}


BROKEN = dict(broken_states())


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_of_another_split_is_refused_and_changes_nothing(name):
    queue = Positives(torch.tensor([0, 0, 1, 1]), seed=0)
    with pytest.raises(ValueError, match="this state of the positives belongs to another split"):
        queue.restore(BROKEN[name])
    assert torch.equal(queue.state()["order"], Positives(torch.tensor([0, 0, 1, 1]), seed=0).state()["order"])
