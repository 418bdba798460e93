"""The figure of large data: its process says what it took, and memory may grow with the points only."""

import json

import pytest
import torch
from bench import large


@pytest.mark.parametrize("what", large.WHAT)
def test_the_process_says_what_it_took(what, monkeypatch, capsys) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    large.main(what, "60", str(torch.get_num_threads()))
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["what"], said["points"]) == (what, 60)
    assert said["seconds"] > 0
    assert said["peak MB"] >= said["loaded MB"] > 0


@pytest.mark.parametrize(("peak", "met"), [(399.0, True), (401.0, False)])
def test_memory_may_grow_as_fast_as_the_points(peak, met, monkeypatch) -> None:
    def process(module: str, what: str, n: str, threads: str) -> dict[str, object]:
        return {"what": what, "points": int(n), "peak MB": 100.0 if n == "10" else peak}

    monkeypatch.setattr(large, "in_process", process)
    monkeypatch.setattr(large, "_points", lambda n: (None, None, "made up"))
    assert {line["met"] for line in large.large((10, 40))["headlines"]} == {met}
