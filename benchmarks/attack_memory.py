"""The most memory that FAB and JSMA hold on 100 images of 3x32x32: python benchmarks/attack_memory.py

Each runs in a process of its own on an untrained convnet, with few steps, since memory does not depend on their number.
Prints a Markdown table; wanted is at most 2 GiB (measured: FAB 0.75 and 0.69, JSMA 0.66).
"""

import json
import sys
from math import inf
from typing import Any

import torch
from bench.memory import in_process
from bench.subjects import fresh
from bench.timing import forget_peak, peak_memory

from holdfast import LInf, Rng, Rows, Threat
from holdfast.attacks.fab import FAB
from holdfast.attacks.jsma import JSMA
from holdfast.geometry import L0

BATCH, STEPS, WANTED = 100, 3, 2.0
ATTACKS: dict[str, Any] = {
    "FAB, untargeted": FAB(threat=Threat(LInf(), inf), steps=STEPS),
    "FAB, 9 targets": FAB(threat=Threat(LInf(), inf), steps=STEPS, targets=9),
    "JSMA": JSMA(threat=Threat(L0(), 2 * STEPS), steps=STEPS),
}


def measured(name: str) -> float:
    """Peak memory of a process that runs the attack, in GiB."""
    torch.set_num_threads(1)
    model = fresh("conv").eval().requires_grad_(False)
    x = Rng(0).uniform(torch.empty(BATCH, 3, 32, 32))
    forget_peak()
    ATTACKS[name](model, x, Rows.of(model(x).argmax(1)), rng=Rng(0))
    return peak_memory() / 2**30


def main() -> None:
    """Print the table."""
    print("| attack | peak GiB | at most 2 |\n| --- | --- | --- |")
    for name in ATTACKS:
        peak = in_process("attack_memory", name)["GiB"]
        print(f"| {name} | {peak:.2f} | {'yes' if peak <= WANTED else '**no**'} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"GiB": measured(sys.argv[1])}))
    else:
        main()
