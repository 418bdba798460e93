"""What benchmark scripts share: their arguments, a JSON file for each figure that is asked for, and the table."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from bench.table import markdown
from bench.timing import machine
from holdfast.records.files import write_text
from holdfast.records.provenance import commit


def arguments(about: str, out: str, units: Sequence[str]) -> argparse.Namespace:
    """tiny, out, and those of the units, each a figure.subject, that are asked for; threads are set."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="only to see that it works: the numbers mean nothing")
    known = [*dict.fromkeys(unit.partition(".")[0] for unit in units), *units]
    parser.add_argument("--only", action="append", choices=known, metavar="FIGURE", help=", ".join(known))
    parser.add_argument("--out", type=Path, default=Path(out), help="where results go (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice by default")
    asked = parser.parse_args()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    wanted = set(asked.only or known)
    asked.units = [unit for unit in units if {unit, unit.partition(".")[0]} & wanted]
    return asked


def measured(
    asked: argparse.Namespace, titles: Mapping[str, str], measure: Callable[[str, str], dict[str, Any]]
) -> int:
    """Measure what is asked for, by figure and subject, and write the table; the exit code."""
    asked.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for unit in asked.units:
        figure, _, subject = unit.partition(".")
        result = measure(figure, subject)
        result["facts"] |= {**machine(), "when": datetime.now(UTC).isoformat(timespec="seconds")}
        result["facts"] |= {"budget": "tiny" if asked.tiny else "full", "commit": commit()}
        write_text(asked.out / f"{unit}.json", json.dumps({"unit": unit, **result}, indent=1) + "\n")
        found[unit] = result
        print(f"{unit}: done")
    write_text(asked.out / "table.md", markdown(found, titles, code()))
    print(asked.out / "table.md")
    return 0


def code() -> str:
    """A digest of the sources that decide the numbers."""
    here = Path(__file__).resolve().parents[1]
    package = here.parent / "src" / "holdfast"
    folders = [
        package / name
        for name in ("attacks", "certify", "crafting", "evaluation", "losses", "methods", "models", "training")
    ]
    files = [*here.rglob("*.py"), *package.glob("*.py"), *(f for folder in folders for f in folder.rglob("*.py"))]
    return sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]
