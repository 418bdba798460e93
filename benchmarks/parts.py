"""Times PGD with each part of crafting off alone, by the CPU time of one thread: a busy machine matters little.

python benchmarks/parts.py [--arithmetic float32|bfloat16] [--models mlp conv] [--turns 7] [--steps N]

Weights are untrained and inputs random: the time of a step depends on neither. Prints a Markdown table of the smallest
time without the part over the smallest time with it. ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 show what a
processor without AVX-512 does.
"""

import argparse
import time
from contextlib import nullcontext

import torch
from bench import ablation
from bench.ablation import Off
from bench.subjects import SUBJECTS, fresh

from holdfast import PGD, Rng, arithmetic
from holdfast.crafting.processor import facts

PARTS: dict[str, Off] = {
    "everything": ablation.no_folding,
    "fused layers": ablation.not_fused,
    "channels-last": ablation.no_channels_last,
    "blocks of pixels": ablation.no_blocks,
    "oneDNN products": ablation.no_onednn,
    "... of which packing": ablation.no_packing,
    "cached weights": ablation.not_cached,
}
STEPS = {"mlp": 40, "lenet": 4, "conv": 10}
BATCHES = (50, 250)


def main() -> None:
    """Print the table of one arithmetic."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arithmetic", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--models", nargs="+", choices=list(STEPS), default=["mlp", "conv"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, help=f"steps of PGD; default: {STEPS}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    columns = [(name, batch) for name in asked.models for batch in BATCHES]
    worth = [measure(name, batch, asked.steps or STEPS[name], asked.arithmetic, asked.turns) for name, batch in columns]
    capabilities = ", ".join(f"{name} {value}" for name, value in facts().items())
    print(f"{asked.arithmetic}, {asked.steps or STEPS} steps, {asked.turns} turns; {capabilities}")
    print("| part | " + " | ".join(f"{name} {batch}" for name, batch in columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for part in PARTS:
        print(f"| {part} | " + " | ".join(f"{found[part]:.2f}" for found in worth) + " |")


def measure(name: str, batch: int, steps: int, numbers: str, turns: int) -> dict[str, float]:
    """The time without each part over the time with all of them, the smallest of interleaved turns."""
    subject, model = SUBJECTS[name], fresh(name).eval()
    x, y = torch.rand(batch, *subject.shape), torch.arange(batch) % 10
    attack = PGD(threat=subject.threat, steps=steps, keep="last")
    least = dict.fromkeys(("as it is", *PARTS), float("inf"))
    for turn in range(turns + 1):  # the first turn traces and is not counted
        for part, off in {"as it is": nullcontext, **PARTS}.items():
            with off(), arithmetic(numbers):  # type: ignore[arg-type]
                started = time.process_time()
                attack(model, x, y, rng=Rng(0))
                taken = time.process_time() - started
            least[part] = min(least[part], taken) if turn else least[part]
    return {part: least[part] / least["as it is"] for part in PARTS}


if __name__ == "__main__":
    main()
