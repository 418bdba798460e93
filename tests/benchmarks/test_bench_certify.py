"""The benchmark of certificates runs whole on numbers of its own."""

import json

import pytest

import certify


def test_every_figure_is_written_and_stands_in_the_table(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["certify.py", "--tiny", "--out", str(tmp_path)])
    assert certify.main() == 0
    table = (tmp_path / "table.md").read_text()
    for unit in certify.UNITS:
        stored = json.loads((tmp_path / f"{unit}.json").read_text())
        assert stored["unit"] == unit
        assert all(row["s/input"] > 0 for row in stored["rows"])
        assert stored["headlines"][0]["what"] in table
    assert "largest gap" in table


def test_missing_data_is_said_in_one_sentence(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["certify.py", "--out", str(tmp_path / "out")])
    with pytest.raises(FileNotFoundError, match="holds no data"):
        certify.main()
