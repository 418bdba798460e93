"""The benchmark of certificates of networks runs whole, with and without auto_LiRPA."""

import json

import bounds


def test_every_figure_is_written_and_stands_in_the_table(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("AUTO_LIRPA_PYTHON", raising=False)
    monkeypatch.setattr("sys.argv", ["bounds.py", "--tiny", "--out", str(tmp_path)])
    assert bounds.main() == 0
    table = (tmp_path / "table.md").read_text()
    stored = {unit: json.loads((tmp_path / f"{unit}.json").read_text()) for unit in bounds.UNITS}
    assert all(row["copies/s"] > 0 for row in stored["smoothing.mlp"]["rows"])
    assert all(row["proved"] <= row["true radius"] for row in stored["sequential.half"]["rows"])
    assert [row["how"] for row in stored["batch.mlp"]["rows"]] == ["one by one", "one batch"]
    assert "auto_LiRPA took no part: RuntimeError: AUTO_LIRPA_PYTHON does not name the python" in table
    assert "share of the plain throughput" in table
