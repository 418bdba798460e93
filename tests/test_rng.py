"""Random numbers are a pure function of (seed, forks, keys, element) and pass statistical tests."""

from hashlib import blake2b

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from holdfast.rng import Rng

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
SIGNIFICANCE = 1e-3  # smallest p-value accepted; seeds are fixed, so the tests are not flaky


def mixed(z: int) -> int:
    """The finalizer of SplitMix64 with Python integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def slow_uniform(seed: int, keys: list[int], element: int) -> float:
    row = None
    for key in keys:
        row = mixed(((key if row is None else row + key) * GOLDEN + 1) & WORD)
    assert row is not None
    stream = mixed(row ^ (seed * GOLDEN & WORD))
    return ((mixed((stream + (element + 1) * GOLDEN) & WORD) >> 12) + 0.5) / 2**52


def wide(rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.float64)


def uncorrelated(a: Tensor, b: Tensor) -> bool:
    return bool(stats.pearsonr(a.flatten().numpy(), b.flatten().numpy()).pvalue > SIGNIFICANCE)


@given(st.integers(-(2**63), 2**64), st.lists(st.integers(0, 2**40), min_size=1, max_size=3), st.integers(0, 20))
def test_bits_agree_with_splitmix64_in_python(seed: int, keys: list[int], element: int) -> None:
    rng = Rng(seed)
    for key in keys:
        rng = rng.at(torch.tensor([key]))
    assert rng.uniform(wide(1, 21))[0, element].item() == slow_uniform(seed, keys, element)


def test_fork_is_a_hash_of_seed_and_name() -> None:
    digest = blake2b(b"7/start", digest_size=8).digest()
    assert Rng(7).fork("start").seed == int.from_bytes(digest, "little") >> 1


@given(st.data())
def test_samples_get_the_same_numbers_in_any_batch_order_and_subset(data: st.DataObject) -> None:
    index = torch.tensor(data.draw(st.lists(st.integers(0, 10**9), min_size=1, max_size=20, unique=True)))
    which = torch.tensor(data.draw(st.lists(st.integers(0, len(index) - 1), max_size=20)), dtype=torch.int64)
    rng = Rng(data.draw(st.integers(0, 2**63))).fork("noise")
    whole = rng.at(index).uniform(torch.empty(len(index), 2, 3))
    assert torch.equal(rng.at(index[which]).uniform(torch.empty(len(which), 2, 3)), whole[which])
    again = rng.at(index).at(index % 3).normal(wide(len(index), 4))
    assert torch.equal(rng.at(index[which]).at(index[which] % 3).normal(wide(len(which), 4)), again[which])


def test_rows_are_keyed_by_position_by_default(rng: Rng) -> None:
    assert torch.equal(rng.uniform(wide(5, 3)), rng.at(torch.arange(5)).uniform(wide(5, 3)))
    assert torch.equal(rng.uniform(wide(9, 3))[:5], rng.uniform(wide(5, 3)))


def test_numbers_depend_on_the_flat_position_not_on_the_shape(rng: Rng) -> None:
    assert torch.equal(rng.uniform(torch.empty(4, 2, 3, 5)).flatten(1), rng.uniform(torch.empty(4, 30)))
    assert torch.equal(rng.uniform(torch.empty(4)), rng.uniform(torch.empty(4, 1))[:, 0])
    assert torch.equal(rng.uniform(torch.empty(4, 30))[:, :7], rng.uniform(torch.empty(4, 7)))


def test_drawing_has_no_side_effects(rng: Rng) -> None:
    assert torch.equal(rng.uniform(wide(3, 3)), rng.uniform(wide(3, 3)))
    assert torch.equal(rng.fork("a").normal(wide(3, 3)), rng.fork("a").normal(wide(3, 3)))


@pytest.mark.parametrize("shape", [(0, 3), (0, 2, 4, 4), (0,), (3, 0), (1, 1)])
@pytest.mark.parametrize("verb", ["uniform", "normal"])
def test_empty_and_single_batches(rng: Rng, shape: tuple[int, ...], verb: str) -> None:
    drawn = getattr(rng, verb)(torch.empty(shape))
    assert drawn.shape == shape
    assert drawn.isfinite().all()


def test_uniform_numbers_are_uniform(rng: Rng) -> None:
    u = rng.uniform(wide(300, 300)).flatten()
    assert stats.kstest(u.numpy(), "uniform").pvalue > SIGNIFICANCE
    for scale in (64, 2**10, 2**26, 2**45):  # leading and later bits
        counts = torch.bincount((u * scale % 1 * 64).long(), minlength=64)
        assert stats.chisquare(counts.numpy()).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("first", [0, 1, 10**12])
def test_the_first_number_of_each_row_is_uniform(rng: Rng, first: int) -> None:
    u = rng.at(first + torch.arange(20_000)).uniform(wide(20_000, 1))
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > SIGNIFICANCE


def test_the_first_number_of_each_seed_is_uniform() -> None:
    u = torch.cat([Rng(seed).uniform(wide(1, 1)) for seed in range(1000)]).flatten()
    assert stats.kstest(u.numpy(), "uniform").pvalue > SIGNIFICANCE


def test_pairs_of_numbers_are_uniform(rng: Rng) -> None:
    u = (rng.uniform(wide(200, 400)) * 16).long()
    for a, b in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):
        counts = torch.bincount((16 * a + b).flatten(), minlength=256)
        assert stats.chisquare(counts.numpy()).pvalue > SIGNIFICANCE


def test_rows_elements_forks_and_seeds_do_not_correlate(rng: Rng) -> None:
    u = rng.uniform(wide(100, 500))
    assert uncorrelated(u[1:], u[:-1])
    assert uncorrelated(u[:, 1:], u[:, :-1])
    for other in (rng.fork("a"), rng.fork(""), rng.fork("a").fork("a"), Rng(1), Rng(2), Rng(-1), Rng(1 << 32)):
        assert uncorrelated(u, other.uniform(wide(100, 500)))
    assert uncorrelated(rng.fork("a").uniform(u), rng.fork("b").uniform(u))
    assert uncorrelated(rng.fork(0).uniform(u), rng.fork(1).uniform(u))
    assert uncorrelated(rng.at(torch.zeros(100)).at(torch.arange(100)).uniform(u), u)


def test_rows_are_not_correlated(rng: Rng) -> None:
    sources = [Rng(seed).fork(name) for seed in range(8) for name in ("start", "noise")]
    rows = torch.cat([source.uniform(wide(4, 1000)) for source in sources])
    z = torch.corrcoef(rows)[*torch.triu_indices(64, 64, 1)] * 1000**0.5
    assert stats.kstest(z.numpy(), "norm").pvalue > SIGNIFICANCE


def test_composite_keys_do_not_collide(rng: Rng) -> None:
    i, j = (grid.flatten() for grid in torch.meshgrid(torch.arange(100), torch.arange(100), indexing="ij"))
    both, swapped = rng.at(i).at(j).uniform(wide(10_000, 1)), rng.at(j).at(i).uniform(wide(10_000, 1))
    assert len(both.unique()) == 10_000  # in particular (2, 1) and (1, 2) differ
    assert uncorrelated(both, swapped)
    assert stats.kstest(both.flatten().numpy(), "uniform").pvalue > SIGNIFICANCE


def test_float64_numbers_have_52_bits_and_agree_with_float32(rng: Rng) -> None:
    double, single = rng.uniform(wide(100, 100)), rng.uniform(torch.empty(100, 100))
    assert double.dtype == torch.float64
    assert single.dtype == torch.float32
    assert (double * 2**53 % 2 == 1).all()
    assert (double - single).abs().max() <= 2**-24


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [0, -1])
def test_uniform_numbers_lie_in_the_open_interval(
    rng: Rng, dtype: torch.dtype, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for draws with all bits clear or set, which are too rare to test by sampling."""
    monkeypatch.setattr(Rng, "_bits", lambda self, like, mix: torch.full(like.shape, bits))
    like = torch.empty(2, 3, dtype=dtype)
    assert ((rng.uniform(like) > 0) & (rng.uniform(like) < 1)).all()
    assert rng.normal(like).isfinite().all()
    assert rng.uniform(like).dtype == rng.normal(like).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_normal_numbers_are_normal(rng: Rng, dtype: torch.dtype) -> None:
    z = rng.normal(torch.empty(400, 250, dtype=dtype)).double().flatten().numpy()
    assert stats.kstest(z, "norm").pvalue > SIGNIFICANCE
    noise = len(z) ** -0.5
    assert abs(z.mean()) < 4 * noise
    assert abs(z.var() - 1) < 4 * 2**0.5 * noise
    assert abs(stats.skew(z)) < 4 * 6**0.5 * noise
    assert abs(stats.kurtosis(z)) < 4 * 24**0.5 * noise


def test_generators_repeat_and_differ_by_purpose(rng: Rng) -> None:
    def order(source: Rng) -> list[int]:
        return torch.randperm(50, generator=source.generator()).tolist()

    assert order(rng) == order(Rng(0))
    assert len({tuple(order(source)) for source in (rng, rng.fork("a"), rng.fork("b"), Rng(1), Rng(-1))}) == 5


def test_wrong_number_of_rows_is_refused(rng: Rng) -> None:
    with pytest.raises(ValueError, match="keyed for 3 rows but 4 were asked for"):
        rng.at(torch.arange(3)).uniform(torch.empty(4, 2))
