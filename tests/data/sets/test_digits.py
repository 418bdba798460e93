from hashlib import sha256

import torch
from sklearn.datasets import load_digits

from holdfast.data.sets import digits


def test_samples_are_those_of_scikit_learn_in_the_unit_interval():
    data = digits.load(valid=0.1, seed=0)
    images, labels = load_digits(return_X_y=True)
    parts = (data.train, data.valid, data.test)
    assert sorted(i for part in parts for i in part.index.tolist()) == list(range(1797))
    for part in parts:
        batch = part.batch(torch.arange(len(part)))
        assert (batch.x.double() * 16).flatten(1).tolist() == images[part.index].tolist()
        assert batch.y.tolist() == labels[part.index].tolist()
        assert batch.x.dtype == torch.float32
    assert data.shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")


def test_the_test_set_is_a_fixed_stratified_fifth():
    data = digits.load(valid=0.1, seed=0)
    _, labels = load_digits(return_X_y=True)
    share = data.test.y.bincount() / torch.from_numpy(labels).bincount()
    assert len(data.test) == round(0.2 * 1797)
    assert ((share - 0.2).abs() < 1 / 170).all()
    for valid, seed in ((0.1, 1), (0.3, 0), (200, 77)):
        assert torch.equal(digits.load(valid=valid, seed=seed).test.index, data.test.index)


def test_the_test_set_never_changes():
    # otherwise results of different releases could not be compared
    index = digits.load(valid=0.1, seed=0).test.index.tolist()
    assert index[:8] == [5, 10, 13, 14, 20, 24, 32, 33]
    assert sha256(str(index).encode()).hexdigest().startswith("b55292cfec5fdb2c")


def test_validation_depends_on_the_seed():
    one, again, other = (digits.load(valid=0.1, seed=seed).valid.index.tolist() for seed in (1, 1, 2))
    assert one == again
    assert one != other
