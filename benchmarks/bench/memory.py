"""Figure 6: the most memory an evaluation holds, each number of samples in a process of its own.

``python -m bench.memory FOLDER BUDGET SUBJECT N THREADS`` is that process: it prints one line of JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.budgets import BUDGETS
from bench.peers import Field, usual
from bench.subjects import SUBJECTS, Bench, dataset, first
from bench.timing import forget_peak, peak_memory
from holdfast import PGD
from holdfast.evaluation.evaluate import Settings, evaluate
from holdfast.evaluation.measurements.attack import Attacked, Clean
from holdfast.evaluation.subject import network

_STEPS = 1  # memory does not depend on the number of steps
_ALLOWED = 1.1


def memory(bench: Bench, name: str) -> dict[str, Any]:
    """Peak memory against the number of samples."""
    bench.robust(name)  # trained here, so that the processes only read it
    rows = [_measured(bench, name, n) for n in bench.budget.memory]
    least, most = rows[0], rows[-1]
    ratio = most["peak MB"] / least["peak MB"]
    what = f"{name}: peak memory with {most['samples']} samples over that with {least['samples']}"
    line = {"what": what, "value": ratio, "wanted": f"<= {_ALLOWED}", "met": ratio <= _ALLOWED}
    facts = {"n": [row["samples"] for row in rows], "repeats": 1, "steps": _STEPS, "dtype": usual()}
    return {"facts": facts | {"data": bench.data_name(name)}, "rows": rows, "headlines": [line]}


def _measured(bench: Bench, name: str, n: int) -> dict[str, Any]:
    settings = [str(bench.models), bench.budget.name, name, str(n), str(torch.get_num_threads())]
    return in_process("bench.memory", *settings)


def in_process(module: str, *settings: str) -> dict[str, Any]:
    """What a module, run as a process of its own, prints as its last line."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", module, *settings]
    said = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if said.returncode:
        raise RuntimeError(f"measuring memory failed: {said.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def main(models: str, budget: str, name: str, n: str, threads: str) -> None:
    """Evaluate n samples and say how much memory it took."""
    torch.set_num_threads(int(threads))
    subject = SUBJECTS[name]
    model = Bench(BUDGETS[budget], Path(models), Field({}, {})).robust(name)
    split = first(dataset(subject.sources, subject.shape).test, int(n))
    forget_peak()
    loaded = peak_memory()
    attack = PGD(threat=subject.threat, steps=_STEPS)
    with TemporaryDirectory() as folder:
        under = network(model, name=name, seed=0, digest="", folder=Path(folder), facts={})
        settings = Settings(seed=0, shard=1000, device=torch.device("cpu"))
        evaluate(under, split, [Clean(), Attacked(name="PGD", attack=attack, recipe={})], settings, lambda *_: None)
    peak = peak_memory()
    print(json.dumps({"samples": len(split), "loaded MB": loaded / 2**20, "peak MB": peak / 2**20}))


if __name__ == "__main__":
    main(*sys.argv[1:])
