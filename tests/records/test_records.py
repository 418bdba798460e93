import json
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from holdfast.records import format as on_disk
from holdfast.records.facts import AttackFacts
from holdfast.records.records import Records, column_name

NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20),
    st.sampled_from(
        ["a,b", 'a"b', "a\nb", "a\r\nb", "naïve ∞", "<script>alert(1)</script>", " ", "=1+1", "file", "x.npy", "x"]
    ),
)
FLOATS = st.floats(width=64)
INTS = st.integers(-(2**63), 2**63 - 1)


def attacked(name: str, norm: str, eps: float, n: int, draw, minimal: bool = False):
    columns = {
        column_name("fooled", norm, name): np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool),
        column_name("distance", norm, name): np.array(draw(st.lists(FLOATS, min_size=n, max_size=n)), float),
        column_name("label", norm, name): np.array(draw(st.lists(INTS, min_size=n, max_size=n)), np.int64),
    }
    return columns, {name: AttackFacts(norm=norm, eps=eps, minimal=minimal).facts()}


@st.composite
def all_records(draw) -> Records:
    n = draw(st.integers(0, 5))
    columns = {key: np.array(draw(st.lists(INTS, min_size=n, max_size=n)), np.int64) for key in ("index", "y", "label")}
    attacks: dict = {}
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        norm, eps = draw(st.sampled_from(["linf", "l2"])), draw(st.sampled_from([0.0, 0.3, math.inf]))
        more, facts = attacked(name, norm, eps, n, draw)
        columns |= more
        attacks |= facts
    for name in draw(
        st.lists(NAMES.filter(lambda text: not text.startswith(("fooled:", "distance:", "label:"))), max_size=2)
    ):
        columns.setdefault(name, np.array(draw(st.lists(FLOATS, min_size=n, max_size=n)), float))
    arrays = draw(
        st.dictionaries(NAMES, hnp.arrays(st.sampled_from([np.float32, np.uint8, np.int64]), (2, 3)), max_size=2)
    )
    facts = draw(st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9), max_size=2))
    return Records(columns, facts | {"attacks": attacks}, arrays)


def same(a, b) -> bool:
    return list(a) == list(b) and all(
        a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f")
        for name in a
    )


@given(all_records(), st.booleans())
def test_loaded_records_equal_saved_records(records: Records, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records.save(Path(folder), packed=packed)
        back = Records.load(Path(folder))
    assert same(records.columns, back.columns)
    assert same(records.arrays, back.arrays)
    assert records.facts == back.facts
    for name, values in records.columns.items():
        numbers = ~np.isnan(values)  # compares the sign of zero too
        assert np.array_equal(
            np.signbit(values.astype(float))[numbers], np.signbit(back.columns[name].astype(float))[numbers]
        )


@given(all_records(), st.booleans())
@settings(max_examples=25)
def test_pandas_reads_the_same_table(records: Records, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records.save(Path(folder), packed=packed)
        frame = pandas.read_csv(Path(folder) / ("records.csv.xz" if packed else "records.csv"))
    assert list(frame.columns) == list(records.columns)
    for name, values in records.columns.items():
        if len(records):
            read = frame[name].to_numpy(values.dtype)
            if values.dtype.kind == "f":  # the precision of pandas depends on its version
                np.testing.assert_allclose(read, values, rtol=1e-14, atol=1e-300)
            else:
                assert np.array_equal(read, values)


def brute_held(records: Records, eps: float, norm: str) -> list[bool]:
    held = []
    for i in range(len(records)):
        stands = records.columns["label"][i] == records.columns["y"][i]
        for name, attack in records.attacks.items():
            if attack.norm == norm and records.columns[f"fooled:{norm}:{name}"][i]:
                distance = records.columns[f"distance:{norm}:{name}"][i]
                if not math.isnan(distance) and min(distance, attack.eps) <= eps:
                    stands = False
        held.append(bool(stands))
    return held


@st.composite
def small_records(draw) -> tuple[dict, dict]:
    n = draw(st.integers(0, 6))
    few = st.lists(st.integers(0, 1), min_size=n, max_size=n)
    columns = {"index": np.arange(n), "y": np.array(draw(few), np.int64), "label": np.array(draw(few), np.int64)}
    attacks: dict = {}
    distances = st.lists(st.sampled_from([0.05, 0.1, 0.3, 0.30000001, 2.0, math.nan]), min_size=n, max_size=n)
    for name in ("a", "b", "c"):
        norm, eps = draw(st.sampled_from(["linf", "l2"])), draw(st.sampled_from([0.1, 0.3, math.inf]))
        more, facts = attacked(name, norm, eps, n, draw)
        more[column_name("distance", norm, name)] = np.array(draw(distances), float)
        columns |= more
        attacks |= facts
    return columns, attacks


EPS = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 1.0, math.inf])


@given(small_records(), EPS, st.sampled_from(["linf", "l2", "l1"]))
def test_held_equals_a_loop_over_samples_and_attacks(given_records, eps: float, norm: str) -> None:
    columns, attacks = given_records
    records = Records(columns, {"attacks": attacks})
    assert records.held(eps, norm).tolist() == brute_held(records, eps, norm)


@given(small_records(), EPS, EPS)
def test_held_never_increases_with_another_attack_or_a_larger_eps(given_records, one: float, two: float) -> None:
    columns, attacks = given_records
    without = {name: values for name, values in columns.items() if not name.endswith(":c")}
    fewer = Records(without, {"attacks": {name: a for name, a in attacks.items() if name != "c"}})
    more = Records(columns, {"attacks": attacks})
    for norm in ("linf", "l2"):
        assert (more.held(one, norm) <= fewer.held(one, norm)).all()
        assert (more.held(max(one, two), norm) <= more.held(min(one, two), norm)).all()


def tiny(distance: list[float], eps: float | str = 0.3, **more: object) -> Records:
    n = len(distance)
    columns = {
        "index": np.arange(n),
        "y": np.zeros(n, int),
        "label": np.zeros(n, int),
        "fooled:linf:a": np.ones(n, bool),
        "distance:linf:a": np.array(distance),
        "label:linf:a": np.ones(n, int),
    }
    return Records(columns, {"attacks": {"a": {"norm": "linf", "eps": eps, **more}}})


def test_distance_rounded_beyond_eps_still_counts_as_fooled() -> None:
    assert not tiny([float(np.float32(0.3) + np.float32(1e-7))]).held(0.3, "linf").any()


def test_point_outside_the_threat_does_not_count_as_fooled() -> None:
    assert tiny([math.nan]).held(math.inf, "linf").all()


def test_accuracy_is_measured_only_where_an_attack_was_run() -> None:
    assert [tiny([0.1]).measured(eps, "linf") for eps in (0.0, 0.1, 0.3, 0.4)] == [True, False, True, False]
    assert not tiny([0.1]).measured(0.3, "l2")
    assert tiny([0.1], eps="inf", minimal=True).measured(0.1234, "linf")


@pytest.mark.parametrize("lost", ["facts.json", "records.csv", "arrays.npz"])
def test_incomplete_folder_is_refused(lost: str, study, tmp_path: Path) -> None:
    study.runs[0].records.save(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="evaluate again"):
        Records.load(tmp_path)


def test_overwrite_interrupted_before_facts_json_is_refused(make_run, tmp_path: Path, monkeypatch) -> None:
    make_run("a", 0, n=10).records.save(tmp_path)

    def die(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr(on_disk, "write_text", die)
    with pytest.raises(OSError, match="killed"):
        make_run("a", 1, n=10).records.save(tmp_path)
    with pytest.raises(ValueError, match=r"records\.csv does not match its checksum in facts\.json"):
        Records.load(tmp_path)


def test_after_a_write_error_old_records_load_or_loading_is_refused(make_run, tmp_path: Path, monkeypatch) -> None:
    """After a failure of the k-th rename either old or new records load, never a mixture."""
    old, new = make_run("a", 0, n=10).records, make_run("a", 1, n=12).records
    replace = os.replace
    for k in range(3):
        old.save(tmp_path)
        calls = iter(range(99))

        def failing(a: Path, b: Path, calls=calls, k=k) -> None:
            if next(calls) == k:
                raise OSError("injected")
            replace(a, b)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", failing)
            with pytest.raises(OSError, match="injected"):
                new.save(tmp_path)
        assert not list(tmp_path.glob(".*"))
        if k == 0:
            assert same(Records.load(tmp_path).columns, old.columns)
        else:
            with pytest.raises(ValueError, match="evaluate again"):
                Records.load(tmp_path)
    new.save(tmp_path)
    assert same(Records.load(tmp_path).columns, new.columns)


def test_arrays_of_earlier_records_are_removed(make_run, tmp_path: Path) -> None:
    records = make_run("a", 0, n=10).records
    records.save(tmp_path)
    Records(records.columns, records.facts).save(tmp_path)
    assert not Records.load(tmp_path).arrays
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts.json", "records.csv"]
    records.save(tmp_path, packed=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arrays.npz", "facts.json", "records.csv.xz"]


def _edit(folder: Path, **changes: object) -> None:
    document = json.loads((folder / "facts.json").read_text())
    (folder / "facts.json").write_text(json.dumps(document | changes))


def test_newer_schema_is_refused(tmp_path: Path) -> None:
    tiny([0.1]).save(tmp_path)
    _edit(tmp_path, schema=on_disk.SCHEMA + 1)
    with pytest.raises(ValueError, match="use a newer holdfast"):
        Records.load(tmp_path)


def test_older_schema_is_upgraded_step_by_step(tmp_path: Path, monkeypatch) -> None:
    tiny([0.1]).save(tmp_path)
    _edit(tmp_path, schema=1)
    monkeypatch.setattr(on_disk, "SCHEMA", 3)
    monkeypatch.setattr(
        on_disk, "UPGRADES", {n: lambda old, n=n: old | {"facts": old["facts"] | {f"from {n}": 1}} for n in (1, 2)}
    )
    assert Records.load(tmp_path).facts.keys() == {"attacks", "from 1", "from 2"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "x"}', "\xff"])
def test_file_that_is_not_facts_json_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"facts\.json"):
        Records.load(tmp_path)


N2 = {"index": np.arange(2), "y": np.zeros(2, int), "label": np.zeros(2, int)}


@pytest.mark.parametrize(
    ("columns", "facts", "arrays", "message"),
    [
        ({"index": np.arange(2), "y": np.arange(2)}, {}, {}, "lack the column 'label'"),
        (N2 | {"y": np.zeros(3, int)}, {}, {}, "3 rows but index has 2"),
        (N2 | {"z": np.array(["a", "b"])}, {}, {}, "column 'z' is <U1"),
        (N2 | {"z": np.zeros((2, 2))}, {}, {}, "one-dimensional"),
        (N2 | {"z": np.zeros(2, np.uint64)}, {}, {}, "uint64"),
        (N2 | {"": np.zeros(2)}, {}, {}, "cannot name"),
        (N2 | {"a\0": np.zeros(2)}, {}, {}, "cannot name"),
        (N2 | {"\ud800": np.zeros(2)}, {}, {}, "cannot name"),
        (N2 | {"fooled:linf:a": np.zeros(2, bool)}, {}, {}, r"facts\['attacks'\] does not name it"),
        (N2, {"attacks": {"a": {"norm": "l2", "eps": 1}}}, {}, "its column is missing"),
        (N2, {"seconds": math.inf}, {}, "JSON"),
        (N2, {"seconds": np.float32(1)}, {}, "JSON"),
        (N2, {}, {"o": np.array([None])}, "Python objects"),
    ],
)
def test_malformed_records_are_refused(columns, facts, arrays, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Records(columns, facts, arrays)


def test_attack_columns_of_a_wrong_type_are_refused() -> None:
    records = tiny([0.1])
    with pytest.raises(ValueError, match="'fooled:linf:a' is int64 but must be bool"):
        Records(dict(records.columns) | {"fooled:linf:a": np.ones(1, int)}, records.facts)


def test_records_are_immutable() -> None:
    records = tiny([0.1])
    with pytest.raises(ValueError, match="read-only"):
        records.columns["y"][0] = 5
    with pytest.raises(TypeError):
        records.columns["y"] = np.zeros(1)


def test_certificates_of_older_records_are_read() -> None:
    columns = {"index": np.arange(2), "y": np.arange(2), "label": np.arange(2), "radius:l2:neighbors": np.ones(2)}
    older = {"name": "neighbors", "k": 3, "norm": "l2", "seconds": 2.0}
    newer = {"neighbors": {"norm": "l2", "seconds": 2.0, "settings": {"k": 3}}}
    for facts in ({"certifier": older}, {"certificates": newer}):
        found = Records(columns, facts)
        assert found.certificates["neighbors"]["norm"] == "l2"
        assert found.spend()["certificate neighbors"].seconds == 2.0
    assert not Records(columns).certificates


def test_spend_lists_the_cost_of_every_stage(study) -> None:
    spend = study.runs[0].records.spend()
    assert list(spend) == ["training", "clean", "PGD-40", "PGD-40 at 0.1", "FGSM", "PGD-L2"]
    assert (spend["training"].seconds, spend["FGSM"].backwards) == (40.0, 500)
