"""Bounds by auto_LiRPA, in an environment of its own: ``PYTHON lirpa_peer.py IN OUT`` reads networks, writes bounds.

It imports neither holdfast nor the rest of the benchmark, so that the environment needs only torch and auto_LiRPA.
"""

import math
import sys
import time

import auto_LiRPA
import torch
from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm


def bounds(case: dict) -> dict:
    """Lower bounds (b, classes) of the margins by CROWN, and the processor seconds they took."""
    model, x, eps, rows = case["model"], case["x"], case["eps"], case["rows"]
    bounded = BoundedModule(model, torch.empty_like(x), device="cpu")
    if case["norm"] == "linf":
        inside = {"norm": math.inf, "x_L": (x - eps).clamp(0, 1), "x_U": (x + eps).clamp(0, 1)}
    else:
        inside = {"norm": 2, "eps": eps}  # without the box, which auto_LiRPA does not use in l2
    started = time.process_time()
    lower, _ = bounded.compute_bounds(
        x=(BoundedTensor(x, PerturbationLpNorm(**inside)),), C=rows, method="CROWN", bound_upper=False
    )
    return {"lower": lower.detach(), "seconds": time.process_time() - started}


def main(given: str, out: str) -> None:
    """Bound every network of the file."""
    data = torch.load(given, weights_only=False)
    torch.set_num_threads(data["threads"])
    for case in data["cases"]:
        bounds(case)  # a first call, which is not counted, as ours has one
    found = [bounds(case) for case in data["cases"]]
    torch.save({"version": auto_LiRPA.__version__, "torch": torch.__version__, "cases": found}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
