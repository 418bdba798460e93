"""Snapshots: damaged files are refused, and nothing is unpickled."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

from holdfast.records import snapshot
from holdfast.training import checkpoint
from tiny_study import same

TENSORS = {
    "a/weight": torch.arange(6.0).reshape(2, 3),
    "step": torch.tensor(7),
    "none": torch.empty(0),
    "half": torch.ones(2).half(),
    "mask": torch.tensor([True, False]),
    "turned": torch.arange(6).reshape(2, 3).T,
}
FACTS = {"step": 12, "lines": ['{"é": 1}\n'], "best": 0.1, "words": "", "nothing": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    snapshot.write(tmp_path / "c.safetensors", TENSORS, FACTS)
    return tmp_path / "c.safetensors"


def test_written_content_is_read_back(path: Path) -> None:
    tensors, facts = snapshot.read(path)
    assert same(tensors, TENSORS)
    assert {name: t.dtype for name, t in tensors.items()} == {name: t.dtype for name, t in TENSORS.items()}
    assert facts == FACTS
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_equal_content_gives_equal_files(path: Path) -> None:
    first = path.read_bytes()
    for _ in range(5):
        snapshot.write(path, dict(reversed(TENSORS.items())), FACTS)
        assert path.read_bytes() == first


def test_every_flipped_bit_is_refused_or_harmless(path: Path) -> None:
    whole, chance = path.read_bytes(), random.Random(0)
    refused = []
    for position in range(0, len(whole), 2):  # one random bit of every other byte
        damaged = bytearray(whole)
        damaged[position] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            tensors, facts = snapshot.read(path)
        except ValueError as error:
            refused.append(str(error))
        else:
            assert same(tensors, TENSORS)
            assert facts in (FACTS, {})  # a file without the entry counts as written by another program
    assert len(refused) > 0.4 * len(whole)
    assert all(message.startswith(f"{path} is damaged (") and "\n" not in message for message in refused)


def test_every_truncation_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is damaged"):
            snapshot.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="is damaged"):
        snapshot.read(path)


def test_too_deeply_nested_facts_are_refused(path: Path) -> None:
    text, whole = "[" * 100_000, {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    path.write_bytes(save(whole, metadata={"holdfast": f"{snapshot._checksum(TENSORS, text)} {text}"}))
    with pytest.raises(ValueError, match="is damaged"):
        snapshot.read(path)


def test_pickle_is_refused(path: Path) -> None:
    torch.save(TENSORS, path)
    with pytest.raises(ValueError, match="is damaged"):
        snapshot.read(path)


def test_weights_of_other_programs_are_read(path: Path) -> None:
    save_file({"weight": torch.ones(2)}, path)
    tensors, facts = snapshot.read(path)
    assert same(tensors, {"weight": torch.ones(2)})
    assert facts == {}


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there are no weights at .*gone\.safetensors; train the model first"):
        snapshot.read(tmp_path / "gone.safetensors")


def test_digest_depends_on_names_types_shapes_and_values() -> None:
    ones = torch.ones(4)
    others = [{"b": ones}, {"a": ones.int()}, {"a": ones.reshape(2, 2)}, {"a": -ones}, {"a": ones, "b": ones}, {}]
    digests = [snapshot.digest(tensors) for tensors in [{"a": ones}, *others]]
    assert len(set(digests)) == len(digests)
    assert snapshot.digest({"a": ones, "b": -ones}) == snapshot.digest({"b": -ones, "a": ones})


@pytest.mark.parametrize("module", [nn.Linear(3, 3), nn.Linear(2, 2, bias=False), nn.Sequential(nn.Linear(2, 2))])
def test_weights_of_another_architecture_are_refused(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"^here\.safetensors does not fit this model \(") as refusal:
        snapshot.load_weights(module, nn.Linear(2, 2).state_dict(), Path("here.safetensors"))
    assert "\n" not in str(refusal.value)


def test_prefixed_tensors_are_found_under_their_prefix() -> None:
    mixed = checkpoint.prefixed("model", {"a": torch.ones(1)}) | checkpoint.prefixed("model2", {"a": torch.zeros(1)})
    assert same(checkpoint.under("model", mixed), {"a": torch.ones(1)})


@pytest.mark.parametrize("kind", ["adam", "sgd", "bare sgd"])
def test_restored_optimizer_continues_with_its_state(kind: str, tmp_path: Path) -> None:
    def made() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        p = nn.Parameter(torch.tensor([1.0, -2.0]))
        if kind == "adam":
            return p, torch.optim.Adam([p], lr=0.1)
        return p, torch.optim.SGD([p], lr=0.1, momentum=0.9 if kind == "sgd" else 0.0)

    def steps(p: nn.Parameter, optimizer: torch.optim.Optimizer, many: int) -> None:
        for _ in range(many):
            optimizer.zero_grad()
            (p**3).sum().backward()
            optimizer.step()

    p, optimizer = made()
    steps(p, optimizer, 2)
    snapshot.write(tmp_path / "o", checkpoint.optimizer_tensors(optimizer), {})
    q, again = made()
    q.data.copy_(p.data)
    checkpoint.restore_optimizer(again, snapshot.read(tmp_path / "o")[0])
    steps(p, optimizer, 3)
    steps(q, again, 3)
    assert torch.equal(p, q)
