"""Reading JSON files of a run; missing and damaged ones are refused."""

from pathlib import Path

import pytest

from holdfast.records.files import read_json, read_lines


def test_written_json_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert read_json(tmp_path / "a.json") == {"n": 1}
    assert read_lines(tmp_path / "a.jsonl") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("text", ["x", "", "[1]", '{"n": '])
def test_error_names_the_damaged_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is damaged .*; remove .* and run again"):
        read_json(path)


@pytest.mark.parametrize("read", [read_json, read_lines])
def test_error_names_the_missing_file(tmp_path: Path, read) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.json is missing; remove .* and run again"):
        read(tmp_path / "a.json")
