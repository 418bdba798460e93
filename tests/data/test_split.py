from hashlib import sha256

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.data.split import DataSet, Split, checked, split_train, spread


def split_of(y, shape=(1, 2, 2)):
    y = torch.as_tensor(y)
    x = torch.arange(len(y) * 4).reshape(len(y), *shape) % 256
    return Split(x.to(torch.uint8), y, torch.arange(len(y)) + 100)


def test_batch_divides_bytes_by_255():
    split = Split(torch.tensor([[0, 255], [51, 102], [7, 9]], dtype=torch.uint8), torch.arange(3), torch.arange(3) + 40)
    batch = split.batch(torch.tensor([2, 1]))
    assert batch.x.dtype == torch.float32
    assert batch.x.tolist() == torch.tensor([[7 / 255, 9 / 255], [0.2, 0.4]]).tolist()
    assert batch.y.tolist() == [2, 1]
    assert batch.index.tolist() == [42, 41]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_batch_does_not_scale_floats(dtype):
    x = torch.tensor([[0.0, 0.25], [0.5, 1.0]], dtype=dtype)
    batch = Split(x, torch.arange(2), torch.arange(2)).batch(torch.tensor([1]))
    assert batch.x.dtype == torch.float32
    assert batch.x.tolist() == [[0.5, 1.0]]


def test_every_byte_is_mapped_into_the_unit_interval():
    every = Split(torch.arange(256).to(torch.uint8)[:, None], torch.zeros(256).long(), torch.arange(256))
    x = every.batch(torch.arange(256)).x[:, 0]
    assert x.min() == 0
    assert x.max() == 1
    assert torch.equal((x * 255).round().long(), torch.arange(256))


def test_take_keeps_the_index():
    part = split_of([0, 1, 2, 3]).take(torch.tensor([3, 0]))
    assert len(part) == 2
    assert part.y.tolist() == [3, 0]
    assert part.index.tolist() == [103, 100]
    assert part.x[:, 0, 0, 0].tolist() == [12, 0]


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), portion=st.floats(0, 1), seed=st.integers(0, 2**40))
def test_split_train_is_a_stratified_partition_in_order(counts, portion, seed):
    y = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])
    full = split_of(y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))])
    most = sum(counts) - len(counts)
    assume(most > 0)
    number = max(1, round(portion * most))
    train, valid = split_train(full, number, seed)

    assert len(valid) == number
    assert sorted(train.index.tolist() + valid.index.tolist()) == full.index.tolist()
    for part in (train, valid):
        assert part.index.tolist() == sorted(part.index.tolist())
        assert torch.equal(part.y, full.y[part.index - 100])
        assert torch.equal(part.x, full.x[part.index - 100])
    held = valid.y.bincount(minlength=len(counts)).tolist()
    quota = [number * count / len(full) for count in counts]
    full_up = any(quota[c] > counts[c] - 1 for c in range(len(counts)))
    for c, count in enumerate(counts):
        assert held[c] <= count - 1
        assert full_up or abs(held[c] - quota[c]) < 1


def test_split_train_by_fraction_is_stratified():
    train, valid = split_train(split_of([0] * 100 + [1] * 50 + [2] * 10), 0.1, seed=5)
    assert valid.y.bincount().tolist() == [10, 5, 1]
    assert train.y.bincount().tolist() == [90, 45, 9]


def test_split_train_depends_on_the_seed():
    full = split_of([0, 1] * 50)
    first, again, other = (split_train(full, 0.2, seed)[1].index.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_split_train_holds_out_every_sample_for_some_seed():
    full = split_of([0] * 5 + [1] * 5)
    assert {i for seed in range(60) for i in split_train(full, 2, seed)[1].index.tolist()} == set(range(100, 110))


@pytest.mark.parametrize("share", [0, 0.0, 1.0, -1, -0.5, 9, 100, True, 0.001, float("nan"), float("inf")])
def test_split_train_refuses_a_share_that_leaves_a_part_empty(share):
    with pytest.raises(ValueError, match=r"valid = .* asks to hold out .* give a share between 0 and 1, or a whole"):
        split_train(split_of([0] * 5 + [1] * 5), share, seed=0)


def good():
    return torch.linspace(0, 1, 12).reshape(3, 4), torch.tensor([0, 1, 2])


def test_checked_assigns_positions():
    x, y = good()
    split = checked(x, y.to(torch.uint8), classes=3, part="train")
    assert split.y.dtype == torch.int64
    assert split.index.tolist() == [0, 1, 2]
    assert split.x is x


def test_checked_rounds_float64_to_float32_first():
    x, y = good()
    assert len(checked(x.double() + 1e-12, y, classes=3, part="train")) == 3


X, Y = good()
BAD = {
    "flat x": (X[:, 0], Y, r"x of shape \(3,\) and y of shape \(3,\)"),
    "one-hot labels": (X, torch.eye(3).long(), r"y of shape \(3, 3\)"),
    "lengths differ": (X[:2], Y, "has 2 samples but 3 labels"),
    "no sample": (X[:0], Y[:0], "is empty"),
    "no pixel": (X[:, :0], Y, "is empty"),
    "whole numbers": ((255 * X).int(), Y, "x of type int32; give uint8"),
    "NaN": (X.where(X != 0, torch.nan), Y, "holds 1 values of x that are NaN or infinite"),
    "infinite": (X.where(X != 1, torch.inf), Y, "holds 1 values of x that are NaN or infinite"),
    "too bright": (255 * X, Y, r"x in \[0, 255\] but \[0, 1\] is allowed.*normalization inside the model"),
    "normalized": (X - 0.5, Y, r"x in \[-0.5, 0.5\] but \[0, 1\] is allowed.*normalization inside the model"),
    "just outside": (X + 1e-6, Y, r"x in \[1e-06, 1\]"),
    "float labels": (X, Y.float(), "labels of type float32; give integers"),
    "boolean labels": (X, Y.bool(), "labels of type bool; give integers"),
    "negative labels": (X, Y - 1, "labels from -1 to 1 but with 3 classes 0 to 2 are allowed"),
    "label too large": (X, Y + 1, "labels from 1 to 3 but with 3 classes 0 to 2 are allowed"),
}


@pytest.mark.parametrize("name", BAD)
def test_checked_refuses_invalid_samples_in_one_sentence(name):
    x, y, message = BAD[name]
    with pytest.raises(ValueError, match=f"^the tiny train set .*{message}") as refusal:
        checked(x, y, classes=3, part="tiny train")
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).count(". ") == 0


def data_set(changed=None):
    parts = [split_of([0, 1, 0, 1]), split_of([0, 1]), split_of([1, 0, 1])]
    if changed is not None:
        parts[changed].x[0, 0, 0, 0] += 1
    return DataSet("tiny", *parts, classes=("cat", "dog"))


def test_digest_covers_shapes_types_and_bytes_of_every_part():
    data = data_set()
    expected = sha256()
    for split in (data.test, data.train, data.valid):
        expected.update(f"torch.uint8{tuple(split.x.shape)}".encode() + bytes(split.x.flatten().tolist()))
        expected.update(f"torch.int64({len(split)},)".encode())
        expected.update(b"".join(label.to_bytes(8, "little") for label in split.y.tolist()))
    assert data.digest == expected.hexdigest() == data_set().digest
    assert all(data.digest != data_set(changed=part).digest for part in range(3))
    assert data.shape == (1, 2, 2)


def test_data_set_refuses_parts_of_different_shape():
    with pytest.raises(ValueError, match=r"samples of shape \(1, 2, 2\) but its test set has \(4,\)"):
        DataSet("tiny", split_of([0, 1]), split_of([0]), split_of([0], shape=(4,)), ("cat", "dog"))


def test_data_set_refuses_a_class_without_training_samples():
    with pytest.raises(ValueError, match="3 classes but no training sample of class 1; number the labels"):
        DataSet("tiny", split_of([0, 2]), split_of([0]), split_of([0]), ("cat", "dog", "cow"))


@given(n=st.integers(1, 300), many=st.integers(1, 400))
def test_spread_positions_are_even(n, many):
    which = spread(n, many)
    assert len(which) == min(n, many)
    gaps = which.diff(append=torch.tensor([n]))
    assert which[0] == 0
    assert int(gaps.max()) - int(gaps.min()) <= 1
    assert torch.equal(spread(n, None), torch.arange(n))
