"""Keeps the records of runs in the repository, for `holdfast ledger` and `holdfast report` without the models.

python benchmarks/keep.py RUN [...] [--out docs/results/records]

RUN is a folder of results of a recipe, such as runs/mnist-mlp-medium. Its records are packed, without images and other
arrays; the numbers of an analysis are added to their facts. Of the training log only validation is kept.
"""

import argparse
import json
from pathlib import Path

from holdfast.records.files import read_lines, write_text
from holdfast.records.records import Records
from holdfast.run.ledger import KEPT, estimates

LARGEST = 8 << 20  # bytes of all kept records


def main() -> int:
    """Pack the records of every model of these runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / KEPT)
    asked = parser.parse_args()
    for run in asked.runs:
        for facts in sorted(run.glob("*/seed-*/records/facts.json")):
            print(keep(facts.parents[1], asked.out))
    size = sum(file.stat().st_size for file in asked.out.rglob("*") if file.is_file())
    print(f"{asked.out}: {size / (1 << 20):.1f} MiB")
    return int(size > LARGEST)


def keep(folder: Path, out: Path) -> Path:
    """Pack the records of one model; returns where they are kept."""
    records = Records.load(folder / "records")
    kept = out / records.facts["recipe"]["name"] / folder.parent.name / folder.name
    facts = dict(records.facts)
    if found := estimates(folder, records):
        facts["analysis"] = {name: vars(one) for name, one in found.items()}
    Records(records.columns, facts).save(kept / "records", packed=True)
    if (folder / "metrics.jsonl").is_file():
        rows = [row for row in read_lines(folder / "metrics.jsonl") if row["split"] == "valid"]
        write_text(kept / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return kept


if __name__ == "__main__":
    raise SystemExit(main())
