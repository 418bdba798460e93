"""Checkpoints are read or refused in one sentence, never executed, and loaded by name and shape."""

import contextlib
import os
import pickle
import re
import struct
import tracemalloc
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast.models.classifier import Classifier, Normalize, adapt
from holdfast.models.weights import load_into, read_state


class Payload:
    """An object whose unpickling creates a file, as a malicious checkpoint would."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.trace),))


class Around(nn.Module):
    """A module that holds a network and the constants of its normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.model = Normalize((0.5,), (0.25,)), network()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(self.norm(x))
        return logits


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def state() -> dict[str, Tensor]:
    return network().state_dict()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("wrap", ["", "state_dict", "model_state_dict", "model", "net"])
@pytest.mark.parametrize(
    "prefix", ["", "module.", "model.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.model."]
)
def test_torch_checkpoints_are_unpacked(wrap: str, prefix: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    named = OrderedDict((prefix + name, tensor) for name, tensor in state.items())
    torch.save({wrap: named, "epoch": 3, "optimizer": {"lr": 0.1}} if wrap else named, tmp_path / "w.pt")
    assert same(read_state(tmp_path / "w.pt"), state)


def test_nested_containers_are_unpacked(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({"epoch": 1, "model": {"state_dict": state, "version": "2"}}, tmp_path / "w.pth")
    assert same(read_state(tmp_path / "w.pth"), state)


def test_layers_may_have_the_name_of_a_container(tmp_path: Path) -> None:
    state = {"model": torch.ones(2), "net.weight": torch.ones(3)}
    torch.save(state, tmp_path / "w.pt")
    assert same(read_state(tmp_path / "w.pt"), state)


def test_old_checkpoints_and_parameters_are_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    """Files of torch before 1.6, as TRADES published them, and parameters instead of tensors."""
    kept = {name: nn.Parameter(t) if t.is_floating_point() else t for name, t in state.items()}
    torch.save(kept, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(tmp_path / "w.pt")
    read = read_state(tmp_path / "w.pt")
    assert same(read, state)
    assert not any(tensor.requires_grad for tensor in read.values())


def test_safetensors_files_are_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    save_file({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "w.safetensors")
    assert same(read_state(tmp_path / "w.safetensors"), state)


def test_prefixes_are_kept_if_only_some_names_have_them(tmp_path: Path) -> None:
    state = {"model.weight": torch.ones(2), "scale": torch.ones(1)}
    torch.save(state, tmp_path / "w.pt")
    assert same(read_state(tmp_path / "w.pt"), state)


def refused(path: Path, words: str) -> str:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        read_state(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    return said


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "w.pkl"])
def test_payloads_are_never_executed(name: str, legacy: bool, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    torch.save(
        {"state_dict": {"weight": torch.ones(2), "bias": Payload(trace)}},
        tmp_path / name,
        _use_new_zipfile_serialization=not legacy,
    )
    said = refused(tmp_path / name, "nothing in it was run")
    assert not trace.exists()
    if name != "w.safetensors":
        assert "posix.mkdir" in said
        pickle.loads(pickle.dumps(Payload(trace)))  # pickle itself executes the payload
        assert trace.exists()


def test_plain_pickles_are_never_executed(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Payload(tmp_path / "trace")))
    refused(tmp_path / "w.pt", "nothing in it was run")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("value", [network(), np.float64(0.5), np.ones(3)], ids=["module", "scalar", "array"])
def test_other_objects_are_refused_by_name(value: object, state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({"state_dict": state, "best": value}, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "it asks for ")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("kind", ["empty", "text", "cut", "flipped"])
def test_damaged_files_are_refused(name: str, kind: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / name
    torch.save(state, path) if name == "w.pt" else save_file(state, path)
    whole = path.read_bytes()
    flipped = bytes([255 - whole[0], *whole[1:]])
    path.write_bytes(
        {"empty": b"", "text": b"weights\n" * 40, "cut": whole[: len(whole) // 2], "flipped": flipped}[kind]
    )
    refused(path, "neither torch nor safetensors writes such")


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(100_000)}, tmp_path / "w.pt")
    read_state(tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        for name, content in members.items():
            bomb.writestr(name, content)
    assert torch.load(tmp_path / "bomb.pt", weights_only=True)["weight"].shape == (
        100_000,
    )  # torch itself decompresses it
    refused(tmp_path / "bomb.pt", "neither torch nor safetensors writes such")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_archives_are_refused_without_a_warning(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "nothing in it was run")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "holds no named tensors"),
        ([torch.ones(2)], "holds no named tensors"),
        (torch.ones(2), "holds no named tensors"),
        ({"weight": torch.ones(2), "epoch": 3}, "holds epoch beside named tensors"),
        ({3: torch.ones(2)}, "holds 3 beside named tensors"),
        ({"weight": torch.eye(2).to_sparse()}, "holds weight beside named tensors"),
        ({"state_dict": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}}, "holds a, b, c and 2 more beside named tensors"),
    ],
)
def test_files_without_a_state_are_refused(content: object, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", words)


def test_a_file_that_contains_itself_is_refused(tmp_path: Path) -> None:
    ring: dict[str, object] = {}
    ring["model"] = ring
    torch.save(ring, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "holds model beside named tensors")


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there are no weights at .*none\.pt; name a \.safetensors file"):
        read_state(tmp_path / "none.pt")


def test_loaded_networks_have_the_same_outputs(state: dict[str, Tensor]) -> None:
    net = network()
    load_into(net, state)
    assert same(net.state_dict(), state)


@pytest.mark.parametrize("prefix", ["", "module.", "model."])
def test_wrapper_prefixes_are_ignored_on_either_side(prefix: str, state: dict[str, Tensor]) -> None:
    for target in (adapt(network()), Around()):
        load_into(target, {prefix + name: tensor for name, tensor in state.items()})
        assert same(getattr(target, "model", getattr(target, "module", None)).state_dict(), state)


def test_constants_of_normalize_may_be_missing_or_given(state: dict[str, Tensor]) -> None:
    whole = Around().state_dict()
    assert {"norm.mean", "norm.std"} < set(whole)
    whole["norm.mean"] = torch.full((1, 1, 1), 0.75)
    target = Around()
    load_into(target, whole)
    assert same(target.state_dict(), whole)
    target = Classifier(nn.Flatten(), nn.Linear(4, 2), Normalize((0.5,), (0.25,)))
    load_into(target, {"head.weight": torch.ones(2, 4), "head.bias": torch.ones(2)})
    assert target.normalize.mean.item() == 0.5
    assert target.head.weight.sum() == 8


def test_num_batches_tracked_may_be_missing(state: dict[str, Tensor]) -> None:
    net = network()
    load_into(net, {name: tensor for name, tensor in state.items() if "num_batches" not in name})
    assert same(net.state_dict(), state)


def test_rename_maps_prefixes(state: dict[str, Tensor]) -> None:
    theirs = {name.replace("0.", "stem.", 1).replace("3.", "top.fc.", 1): tensor for name, tensor in state.items()}
    theirs |= {"top.unused.weight": torch.ones(3), "topping": torch.ones(1)}
    net = network()
    load_into(net, theirs, {"stem": "0", "top": None, "top.fc": "3", "topping": None})
    assert same(net.state_dict(), state)
    load_into(net[3], {"fc.weight": torch.ones(3, 8), "fc.bias": torch.ones(3)}, {"fc": ""})
    assert net[3].weight.sum() == 24
    load_into(nn.Sequential(OrderedDict(fc=nn.Linear(8, 3))), net[3].state_dict(), {"": "fc"})


def test_rename_refuses_duplicate_names(state: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"rename gives two tensors the name 'fc\.weight'"):
        load_into(network(), {"a.weight": torch.ones(1), "b.weight": torch.ones(1)}, {"a": "fc", "b": "fc"})


def test_mismatched_weights_are_named_and_change_nothing(state: dict[str, Tensor]) -> None:
    net = network()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    given = {name: tensor for name, tensor in state.items() if not name.startswith("1.running")}
    given |= {"4.weight": torch.ones(1), "3.weight": torch.ones(8, 3)}
    with pytest.raises(ValueError, match="the weights do not fit the model") as caught:
        load_into(net, given)
    assert str(caught.value) == (
        "the weights do not fit the model (missing: 1.running_mean, 1.running_var; unexpected: 4.weight; "
        "of another shape: 3.weight (8, 3) for (3, 8)), so rename them or build the model they belong to"
    )
    assert same(net.state_dict(), before)
    with pytest.raises(ValueError, match=r"missing: 0\.weight, 0\.bias, 1\.weight and 5 more"):
        load_into(net, {})


def test_half_precision_weights_are_cast_to_the_type_of_the_model(state: dict[str, Tensor]) -> None:
    net = network()
    load_into(net, {name: t.half() if t.is_floating_point() else t for name, t in state.items()})
    assert net[3].weight.dtype == torch.float32
    torch.testing.assert_close(net.state_dict(), dict(state), atol=1e-3, rtol=1e-3)


def pickled(path: Path, body: bytes, capitals: bool = False) -> Path:
    """A zip checkpoint whose weights are this pickle of protocol 2, or that contains it as another member."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/version", b"3\n")
        archive.writestr("w/byteorder", b"little")
        archive.writestr("w/data.pkl", b"\x80\x02" + (b"}" if capitals else body) + b".")
        if capitals:
            archive.writestr("w/DATA.PKL", b"\x80\x02" + body + b".")
    return path


def long(number: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", number)


def words(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


SIZE, TIMES = 50_000, 1000  # 50 MB of copies, from files of less than a hundredth of that
ITEMS = b"".join(b"M" + struct.pack("<H", i) + b"K\x01\x86" for i in range(5000))
PAIRS = words("l") + b"]q\x01(" + ITEMS + b"es"  # a list of pairs, stored in the memo as 1
STATE = words("l") + b"}q\x01(" + b"".join(words(f"a{i}") + b"K\x01" for i in range(5000)) + b"us"
ORDERED = b"ccollections\nOrderedDict\n"
BOMBS = {
    "bytes from a number": (words("a") + b"cbuiltins\nbytearray\n" + long(SIZE * TIMES) + b"\x85Rs", "bytearray"),
    "as Python 2 named it": (words("a") + b"c__builtin__\nbytearray\n" + long(SIZE * TIMES) + b"\x85Rs", "bytearray"),
    "copies of a text": (
        words("l") + words("x" * SIZE) + b"q\x01s" + b"".join(
            words(str(i)) + b"c_codecs\nencode\nh\x01" + words("latin1") + b"\x86Rs" for i in range(TIMES)
        ),
        "_codecs.encode",
    ),
    "copies of a list": (
        PAIRS + b"".join(words(str(i)) + ORDERED + b"h\x01\x85Rs" for i in range(TIMES // 10)), "writes such"
    ),
    "copies of a list in a long tuple": (
        PAIRS + b"".join(words(str(i)) + ORDERED + b"(h\x01tRs" for i in range(TIMES // 10)), "writes such"
    ),
    "copies of a list in a list": (
        PAIRS + b"".join(words(str(i)) + ORDERED + b"]h\x01aRs" for i in range(TIMES // 10)), "writes such"
    ),
    "copies of a list that is put down": (
        PAIRS + b"".join(words(str(i)) + ORDERED + b"h\x01q\x02\x85q\x03Rs" for i in range(TIMES // 10)), "writes such"
    ),
    "copies of a tuple": (
        PAIRS[:-1] + b"\x85q\x02s" + b"".join(
            words(str(i)) + ORDERED + b"h\x02Rs" for i in range(TIMES // 10)
        ),
        "writes such",
    ),
    "copies of a state": (
        STATE + b"".join(words(str(i)) + ORDERED + b")Rh\x01bs" for i in range(TIMES // 10)), "writes such"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("form", ["zip", "legacy", "member in capitals"])
def test_pickles_that_would_fill_the_memory_are_refused(name: str, form: str, tmp_path: Path) -> None:
    body, said = BOMBS[name]
    body = b"}" + body
    path = tmp_path / "w.pt"
    if form == "legacy":
        start = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
        path.write_bytes(b"".join(start) + b"\x80\x02" + body + b"." + pickle.dumps([], 2))
    else:
        pickled(path, body, form == "member in capitals")
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    refused(path, said)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize("name", ["bytes from a number", "copies of a state"])
def test_torch_itself_would_fill_the_memory(name: str, tmp_path: Path) -> None:
    # the test above is meaningful only if torch itself fills the memory
    path = pickled(tmp_path / "w.pt", b"}" + BOMBS[name][0])
    tracemalloc.start()
    torch.load(path, weights_only=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak > 8_000_000


@pytest.mark.parametrize("legacy", [False, True])
def test_full_training_checkpoints_are_read(legacy: bool, state: dict[str, Tensor], tmp_path: Path) -> None:
    net = network()
    memory = {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 1, 3, 3)}
    whole = {
        "state_dict": net.state_dict(),  # an OrderedDict with attributes
        "optimizer": {"state": {0: memory}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}]},
        "scheduler": {"milestones": Counter([2, 4])},
        "shape": torch.Size([1, 4, 4]),
        "twice": [net[3].weight, net[3].weight, net[0].weight.half(), net[0].weight.bfloat16()],
        "device": torch.device("cpu"),
        "seen": {1, 2},
    }
    torch.save(whole, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
    assert same(read_state(tmp_path / "w.pt"), net.state_dict())


def test_tensors_larger_than_their_storage_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.empty(2, 3, device="meta")}, tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "holds weight beside named tensors")
    torch.save({"weight": torch.ones(1).expand(10**12)}, tmp_path / "w.pt")
    assert (tmp_path / "w.pt").stat().st_size < 10_000
    refused(tmp_path / "w.pt", "holds weight beside named tensors")
    torch.save({"weight": torch.ones(10, 4)[:, 1]}, tmp_path / "w.pt")  # a view is smaller than its storage
    assert read_state(tmp_path / "w.pt")["weight"].tolist() == [1] * 10


def test_bytes_after_an_archive_are_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(state, tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(whole[:-2] + b"\x04\x00more")  # a comment, which could contain another directory
    assert zipfile.is_zipfile(tmp_path / "w.pt")
    refused(tmp_path / "w.pt", "neither torch nor safetensors writes such")


@given(where=st.floats(0, 1), change=st.integers(1, 255), cut=st.booleans(), kind=st.sampled_from(["pt", "old", "st"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_a_damaged_file_gives_a_value_error_or_tensors(
    where: float, change: int, cut: bool, kind: str, tmp_path: Path, state: dict[str, Tensor]
) -> None:
    path = tmp_path / ("w.safetensors" if kind == "st" else "w.pt")
    if kind == "st":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "pt")
    content = bytearray(path.read_bytes())
    place = int(where * (len(content) - 1))
    content[place] ^= change
    path.write_bytes(content[:place] if cut else content)
    with contextlib.suppress(ValueError):
        assert all(isinstance(tensor, Tensor) for tensor in read_state(path).values())
