"""Prints what a reader of the source has before them, as a Markdown table with one column for each checkout.

python benchmarks/structure.py CHECKOUT [CHECKOUT ...]

- Code lines are lines without blank lines, comments and docstrings.
- The length of a function is from `def` to its last line, nested functions and docstrings included, decorators not.
- PGD end to end is attacks/pgd.py and every file of the package it imports, directly or not: imports inside of
  functions count, those for type checkers only do not. "Without the engine" leaves the files of the frozen view out
  of that list: crafting/, or where earlier versions kept them.
- A command touches a file if a function of it runs: the command is run on a small input (the recipes of the first
  checkout, cut short) and traced. Code at module level and class bodies do not count.
- Repeated lines are counted by the program `duplicates`, where there is one: pairs of places in src that share six or
  more lines, the same or alike but for names and values.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from same_results import FLOAT32, OWN_COMMAND, RECIPES, prepared

ENGINE_BEFORE = (
    *("models/crafting", "models/folding", "models/tracing", "models/runs", "models/layers", "models/blocks"),
    *("models/packed", "models/unchanged", "models/arithmetic", "models/_trial", "models/mixed", "attacks/_micro"),
)

_SHORT = ("--set", "train.epochs=1", "--set", "seeds=[0,1]", "--set", "evaluate.samples=20")
_SWEEP = ("--method", "TLA", "--over", "train.batch=[64,128]", "--sampler", "grid")
COMMANDS = {
    "train": ("train", "quickstart.toml", *_SHORT, "--out", "study"),
    "evaluate": ("evaluate", "quickstart.toml", *_SHORT, "--out", "study"),
    "certify": ("certify", "arml-digits.toml", "--set", "certify.samples=5", "--set", "seeds=[0]", "--out", "proofs"),
    "sweep": ("sweep", "quickstart.toml", *_SHORT, *_SWEEP, "--out", "swept"),
    "own model": (*OWN_COMMAND, "--samples", "20", "--out", "own"),
}
"""The five paths through the package; `evaluate` judges what `train` left."""

TRACER = """
import json, runpy, sys, threading
report, package, *arguments = sys.argv[1:]
touched = set()
def called(frame, event, argument):
    code = frame.f_code
    if code.co_flags & 1 and code.co_filename.startswith(package):  # 1: a function, not a module or a class body
        touched.add(code.co_filename)
threading.settrace(called)
sys.settrace(called)
sys.argv = ["holdfast", *arguments]
try:
    runpy.run_module("holdfast", run_name="__main__")
finally:
    sys.settrace(None)
    with open(report, "w") as file:
        json.dump(sorted(touched), file)
"""

_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Measure every checkout and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="+")
    parser.add_argument("--no-commands", action="store_true", help="skip what runs commands, which takes minutes")
    asked = parser.parse_args()
    found = [measured(checkout.resolve()) for checkout in asked.checkout]
    if not asked.no_commands:
        for checkout, figures in zip(asked.checkout, found, strict=True):
            figures |= touched(asked.checkout[0].resolve(), checkout.resolve())
    print("| |", " | ".join(checkout.name for checkout in asked.checkout), "|")
    print("| --- |", " | ".join("---" for _ in found), "|")
    for name in found[0]:
        print(f"| {name} |", " | ".join(figures[name] for figures in found), "|")
    return 0


def measured(checkout: Path) -> dict[str, str]:
    """The figures that need no run."""
    package = checkout / "src" / "holdfast"
    files = sorted(package.rglob("*.py"))
    folders = Counter(path.parent.relative_to(package).as_posix() for path in files)
    functions = sorted((length, name) for path in files for length, name in function_lengths(path, package))
    lengths = [length for length, _ in functions]
    long = [f"{path.relative_to(package)} {lines(path)}" for path in files if lines(path) > 300]
    pgd = closure(package, package / "attacks" / "pgd.py")
    return {
        "lines of src": f"{sum(map(lines, files)):,}",
        "code lines of src": f"{sum(map(code_lines, files)):,}",
        "files": str(len(files)),
        "most files in one folder": "{1} ({0})".format(*folders.most_common(1)[0]),
        "files per folder": ", ".join(f"{folder} {count}" for folder, count in folders.most_common()),
        "function length: median / p90 / maximum": f"{median(lengths):g} / {p90(lengths):g} / {lengths[-1]}",
        "longest function": functions[-1][1],
        "modules over 300 lines": f"{len(long)}" + (f" ({', '.join(long)})" if long else ""),
        "PGD end to end": _size(pgd),
        "PGD without the engine": _size(pgd - engine(package)),
        "pairs of places that repeat six or more lines": repeated(checkout / "src"),
    }


def lines(path: Path) -> int:
    """All lines of a file."""
    return len(path.read_text().splitlines())


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments, docstrings."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in _NO_CODE]
    code = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(code - set(_docstring_lines(ast.parse(path.read_text()))))


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and ast.get_docstring(node) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def function_lengths(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """The length and the name of every function in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, _Function):
            yield (node.end_lineno or 0) - node.lineno + 1, f"{path.relative_to(package)}: {node.name}"


def p90(lengths: list[int]) -> float:
    """The ninth decile."""
    return quantiles(lengths, n=10, method="inclusive")[-1]


def closure(package: Path, start: Path) -> set[Path]:
    """A file and all files of the package that it imports, directly or not."""
    found, waiting = set[Path](), {start}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= set(imported(path, package)) - found
    return found


def imported(path: Path, package: Path) -> Iterator[Path]:
    """The files of the package that a file imports at run time."""
    for node in _at_run_time(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [[alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [[f"{node.module}.{alias.name}", node.module] for alias in node.names]
        else:
            continue
        for possible in names:  # of `from a import b`, b may be a module or a name in a
            yield from [file for name in possible if (file := _file(name, package))][:1]


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield from _at_run_time(child)


def _file(module: str, package: Path) -> Path | None:
    first, *rest = module.split(".")
    place = package.joinpath(*rest)
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    return found[0] if first == package.name and found else None


def engine(package: Path) -> set[Path]:
    """The files of the frozen view that attacks differentiate."""
    return {*(package / "crafting").glob("*.py"), *(package / f"{name}.py" for name in ENGINE_BEFORE)}


def _size(files: set[Path]) -> str:
    return f"{len(files)} files, {sum(map(lines, files)):,} lines"


def repeated(folder: Path) -> str:
    """How many pairs of places repeat six or more lines."""
    if shutil.which("duplicates") is None:
        return "not measured"
    done = subprocess.run(["duplicates", "--repo", str(folder)], capture_output=True, text=True, check=True)
    counted = re.match(r"(\d+) pairs? of places", done.stdout)
    return counted[1] if counted else "0"


def touched(recipes_of: Path, checkout: Path) -> dict[str, str]:
    """How many files of the package each command runs functions of."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder)
        for recipe in RECIPES:
            prepared(recipes_of, recipe, inputs)
        traces = {name: traced(checkout, command, inputs) for name, command in COMMANDS.items()}
    return {f"files touched by {name}": str(len(files)) for name, files in traces.items()}


def traced(checkout: Path, command: tuple[str, ...], inputs: Path) -> list[str]:
    """The files of the package in which a function ran while a command did."""
    (inputs / "tracer.py").write_text(TRACER)
    package = str(checkout / "src" / "holdfast") + os.sep
    called = [sys.executable, "tracer.py", "trace.json", package, *command]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"} | FLOAT32
    done = subprocess.run(called, cwd=inputs, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"holdfast {' '.join(command)} with {checkout} failed: {done.stderr.strip()[-500:]}")
    found: list[str] = json.loads((inputs / "trace.json").read_text())
    return found


if __name__ == "__main__":
    raise SystemExit(main())
