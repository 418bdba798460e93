"""Times the same calls in two checkouts, in turns and by the CPU time of one thread: did a change make attacks slower?

python benchmarks/same_speed.py BEFORE AFTER [--only pgd.mlp ...] [--turns 15]

Prints a Markdown table: seconds before, seconds after, and their ratio, each the smallest of the turns. The calls are
those of `attacks.py --quick`: PGD at full cost in float32 and, where the processor has it, in bfloat16, and training
steps in the arithmetic that crafting chooses itself. Weights are untrained and inputs random: times depend on neither.
`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2` shows a processor without AVX-512.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self

Call = Callable[[], object]

STEPS = {"mlp": 40, "lenet": 2, "conv": 5}
BATCHES, TRAIN_BATCHES = (50, 250), (50, 128)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names, such as pgd.mlp or step")
    parser.add_argument("--turns", type=int, default=15)
    asked = parser.parse_args()
    with Worker(asked.before.resolve()) as first, Worker(asked.after.resolve()) as second:
        print(f"| {second.facts} | before | after | after / before |\n| --- | --- | --- | --- |")
        for name in [name for name in first.names if name.startswith(tuple(asked.only))]:
            turns = [(first.seconds(name), second.seconds(name)) for _ in range(asked.turns + 1)][1:]
            before, after = map(min, zip(*turns, strict=True))
            print(f"| {name} | {before:.4f} | {after:.4f} | {after / before:.3f} |", flush=True)


class Worker:
    """A process that runs the calls of one checkout when asked to; it ends with the context."""

    def __init__(self, checkout: Path) -> None:
        paths = os.pathsep.join(str(checkout / folder) for folder in ("src", "benchmarks"))
        # -P: Python would put the folder of this file first, which holds the benchmarks of another checkout
        command = [sys.executable, "-P", __file__, "--serve"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, **pipes
        )
        self.names, self.facts = json.loads(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)  # closes its standard input, at which it ends

    def seconds(self, name: str) -> float:
        """CPU time of one call."""
        print(name, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        if not (line := self._process.stdout.readline()):
            raise SystemExit("a worker ended; its message is above")
        return str(line)


def serve() -> None:
    """Answer each name on standard input with the CPU time of a call of this checkout."""
    import torch  # here, where the checkout to import from is set
    from bench.peers import OURS

    torch.manual_seed(0)
    makers, made = calls(), dict[str, Call]()
    print(json.dumps([list(makers), f"{torch.backends.cpu.get_cpu_capability()}, {', '.join(OURS)}"]), flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name not in made:
            made[name] = makers[name]()
        started = time.process_time()
        made[name]()
        print(time.process_time() - started, flush=True)


def calls() -> dict[str, Callable[[], Call]]:
    """What makes each call, by its name."""
    from bench.peers import OURS
    from bench.subjects import SUBJECTS

    pgd = {
        f"pgd.{name}, {batch}, {who}": partial(_pgd, name, batch, who)
        for name, batch, who in product(STEPS, BATCHES, OURS)
    }
    return pgd | {
        f"step.{name}, {batch}, {steps} crafting steps": partial(_step, name, batch, steps)
        for name, batch in product(("mlp", "conv"), TRAIN_BATCHES)
        for steps in (10, SUBJECTS[name].published)
    }


def _pgd(name: str, batch: int, who: str) -> Call:
    from bench.peers import OURS
    from bench.subjects import SUBJECTS, fresh

    eps, model = SUBJECTS[name].eps, fresh(name).eval().requires_grad_(False)
    return partial(OURS[who][1], model, *_samples(name, batch), eps, eps / 4, STEPS[name])


def _step(name: str, batch: int, steps: int) -> Call:
    import torch
    from bench.subjects import SUBJECTS, fresh
    from bench.training import Stepper, _methods

    from holdfast import Batch

    method = _methods(SUBJECTS[name], steps, 0.0)["holdfast"]
    return Stepper(fresh(name), method, Batch(*_samples(name, batch), torch.arange(batch)))


def _samples(name: str, batch: int) -> tuple[Any, Any]:
    import torch
    from bench.subjects import SUBJECTS

    return torch.rand(batch, *SUBJECTS[name].shape), torch.arange(batch) % 10


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
