import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from holdfast.data.from_torch import from_dataset, from_loader


def tensors(n, classes=3, kind=torch.float32):
    x = torch.arange(n * 4).reshape(n, 1, 2, 2) % 256
    return TensorDataset(x.to(torch.uint8) if kind == torch.uint8 else (x / 255).to(kind), torch.arange(n) % classes)


class Own(Dataset):
    """A dataset computed from the position that counts how often each sample is read."""

    def __init__(self, n, make):
        self.n, self.make, self.read = n, make, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.read.append(i)
        return self.make(i)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.full((1, 2, 2), i / 10), i % 3) for i in range(9)])


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
@pytest.mark.parametrize("loader", [False, True])
def test_samples_keep_their_order(kind, loader):
    train, test = tensors(12, kind=kind), tensors(6, kind=kind)
    if loader:
        data = from_loader(DataLoader(train, batch_size=5), DataLoader(test, batch_size=4), valid=3, seed=1)
    else:
        data = from_dataset(train, test, valid=3, seed=1)
    assert (data.name, data.shape, data.classes) == ("own", (1, 2, 2), ("0", "1", "2"))
    assert (len(data.train), len(data.valid), len(data.test)) == (9, 3, 6)
    for split, source in ((data.train, train), (data.valid, train), (data.test, test)):
        assert torch.equal(split.x, source.tensors[0][split.index])
        assert torch.equal(split.y, source.tensors[1][split.index])
        assert split.x.dtype == kind


def test_datasets_and_loaders_give_the_same_data():
    one = from_dataset(tensors(12), tensors(6), valid=3, seed=1)
    two = from_loader(DataLoader(tensors(12)), DataLoader(tensors(6), batch_size=6), valid=3, seed=1)
    assert one.digest == two.digest
    assert torch.equal(one.valid.index, two.valid.index)


def test_every_sample_is_read_once():
    source = np.random.default_rng(0)
    train = Own(12, lambda i: (torch.tensor(source.random((1, 2, 2))), i % 3))
    data = from_dataset(train, tensors(6, kind=torch.float64), valid=3)
    assert train.read == list(range(12))
    first = data.train.batch(torch.arange(9)).x
    assert torch.equal(first, data.train.batch(torch.arange(9)).x)


def test_iterable_datasets_without_length():
    data = from_dataset(Stream(), Stream(), valid=3)
    assert data.test.x[:, 0, 0, 0].tolist() == pytest.approx([i / 10 for i in range(9)])


SAMPLES = {
    "array": (lambda i: (np.full((3, 2, 2), i, np.uint8), i % 3), (3, 2, 2)),
    "features": (lambda i: (np.full(5, i / 12), np.int64(i % 3)), (5,)),
    "gray image": (lambda i: (Image.new("L", (4, 2), i), i % 3), (1, 2, 4)),
    "color image": (lambda i: (Image.new("RGB", (4, 2), (i, 0, 0)), i % 3), (3, 2, 4)),
    "palette image": (lambda i: (Image.new("RGB", (4, 2), (204, 0, 0)).convert("P"), i % 3), (3, 2, 4)),
    "list": (lambda i: [torch.full((2,), i / 12), torch.tensor(i % 3)], (2,)),
    "with gradient": (lambda i: (torch.full((2,), i / 12, requires_grad=True), i % 3), (2,)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_types_of_samples(name):
    make, shape = SAMPLES[name]
    data = from_dataset(Own(12, make), Own(6, make), valid=3)
    assert data.shape == shape
    assert data.test.y.tolist() == [0, 1, 2] * 2
    assert not data.train.x.requires_grad
    if name != "palette image":
        scale = 1 if data.test.x.dtype == torch.uint8 else 12
        assert (data.test.x.reshape(6, -1)[:, 0] * scale).tolist() == pytest.approx(range(6))


def test_class_names_are_given_or_those_of_the_dataset():
    train = tensors(12)
    assert from_dataset(train, tensors(6), classes=["a", "b", "c"], valid=3).classes == ("a", "b", "c")
    train.classes = ["x", "y", "z"]
    assert from_dataset(train, tensors(6), valid=3).classes == ("x", "y", "z")
    assert from_loader(DataLoader(train), DataLoader(tensors(6)), valid=3).classes == ("x", "y", "z")


def only(sample, at=4):
    def make(i):
        return sample if i == at else (torch.full((1, 2, 2), i / 12), i % 3)

    return Own(12, make)


X = torch.zeros(1, 2, 2)
BAD = {
    "no pair": (only(X), "sample 4 of the train set is a Tensor but a pair"),
    "dict": (only({"x": X, "y": 0}), "sample 4 of the train set is a dict but a pair"),
    "three": (only((X, 0, 0)), "sample 4 of the train set is a tuple but a pair"),
    "another shape": (
        only((X[:, :1], 0)),
        r"sample 4 .* is float32 of shape \(1, 1, 2\) but the first one is float32 of",
    ),
    "another type": (only((X.double(), 0)), "sample 4 .* is float64 of shape .* but the first one is float32"),
    "words": (only(("cat", 0)), "sample 4 of the train set has x of type str"),
    "objects": (only((np.array([None]), 0)), "sample 4 of the train set has x of type ndarray"),
    "float label": (only((X, 0.5)), "sample 4 of the train set has the label 0.5 of type float"),
    "one-hot label": (only((X, torch.eye(3)[0])), "sample 4 of the train set has the label"),
    "no label": (only((X, None)), "sample 4 of the train set has the label None of type NoneType"),
    "nothing": (Own(0, None), "the train set is empty"),
    "normalized": (only((X - 1, 0)), r"the own train set has x in \[-1, .*normalization inside the model"),
    "gap in labels": (only((X, 7)), "the own train set has labels from 0 to 7 but with 4 classes"),
    "huge label": (only((X, 10**15)), "labels from 0 to 1000000000000000 but with 4 classes"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_samples_are_refused_in_one_sentence(name):
    train, message = BAD[name]
    with pytest.raises(ValueError, match=message) as refusal:
        from_dataset(train, tensors(6), valid=3)
    assert "\n" not in str(refusal.value)


def test_errors_in_user_code_are_not_caught():
    def make(i):
        raise IndexError("my own mistake")

    with pytest.raises(IndexError, match="my own mistake"):
        from_dataset(Own(3, make), tensors(6), valid=3)


DROPS = {
    "shuffle": {"shuffle": True},
    "random sampler": {"sampler": RandomSampler(range(12))},
    "random subset": {"sampler": SubsetRandomSampler(range(12))},
    "weighted": {"sampler": WeightedRandomSampler([1.0] * 12, 12)},
    "drop_last": {"drop_last": True, "batch_size": 5},
}


@pytest.mark.parametrize("name", DROPS)
@pytest.mark.parametrize("part", ["train", "test"])
def test_loaders_that_shuffle_or_drop_are_refused(name, part):
    bad, good = DataLoader(tensors(12), **DROPS[name]), DataLoader(tensors(12))
    with pytest.raises(ValueError, match=f"the {part} loader shuffles or drops its last batch.*give a loader with"):
        from_loader(*((bad, good) if part == "train" else (good, bad)), valid=3)


def test_a_sequential_sampler_is_accepted():
    data = from_loader(
        DataLoader(tensors(12), sampler=SequentialSampler(range(12))), DataLoader(Stream(), batch_size=4), valid=3
    )
    assert (len(data.train), len(data.test)) == (9, 9)


@pytest.mark.parametrize(
    ("batch", "message"),
    [((X, [0]), "batch 0 of the train loader is not a tensor x"), (X, "batch 0 of the train loader is a Tensor but")],
)
def test_invalid_batches_are_refused(batch, message):
    loader = DataLoader(tensors(12), batch_size=12, collate_fn=lambda rows: batch)
    with pytest.raises(ValueError, match=message):
        from_loader(loader, DataLoader(tensors(6)), valid=3)
