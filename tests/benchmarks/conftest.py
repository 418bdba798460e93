"""The benchmarks are scripts beside the package: their folder goes on the path, as when one of them is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
