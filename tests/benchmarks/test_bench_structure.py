"""The figures about the source are those one counts by hand on a package of a few lines."""

from pathlib import Path

import pytest
import structure

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "__init__.py": '"""One line."""\n',
    "__main__.py": "import sys\nfrom holdfast.attacks.pgd import attack\nattack()\nsys.exit(0)\n",
    "skipped.py": "def skipped():\n    pass\n",
    "geometry.py": "class Ball:\n    size = 1\n",
    "attacks/__init__.py": "",
    "attacks/_loop.py": '''
from holdfast import geometry  # a module


def loop():
    """Two lines
    of words."""

    text = """two lines
    of code"""
    return text, geometry.Ball
''',
    "attacks/pgd.py": """
from typing import TYPE_CHECKING

from holdfast.attacks._loop import loop

if TYPE_CHECKING:
    from holdfast.skipped import skipped


def attack():
    from holdfast.crafting import freeze

    return freeze(loop)
""",
    "crafting/__init__.py": "from holdfast.crafting.view import freeze\n",
    "crafting/view.py": "def freeze(function):\n    return function()\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "checkout" / "src" / "holdfast" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "checkout"


def relative(paths: object, checkout: Path) -> set[str]:
    return {Path(path).relative_to(checkout / "src" / "holdfast").as_posix() for path in paths}  # type: ignore[attr-defined]


def test_code_lines_are_counted_without_blank_lines_comments_and_docstrings(checkout: Path) -> None:
    package = checkout / "src" / "holdfast"
    assert structure.lines(package / "attacks" / "_loop.py") == 11
    assert structure.code_lines(package / "attacks" / "_loop.py") == 5
    assert structure.code_lines(package / "__init__.py") == 0


def test_a_function_is_as_long_as_from_def_to_its_last_line(checkout: Path) -> None:
    package = checkout / "src" / "holdfast"
    assert list(structure.function_lengths(package / "attacks" / "_loop.py", package)) == [
        (7, "attacks/_loop.py: loop")
    ]


def test_files_to_read_are_what_is_imported_at_run_time(checkout: Path) -> None:
    package = checkout / "src" / "holdfast"
    found = structure.closure(package, package / "attacks" / "pgd.py")
    engine = {"crafting/__init__.py", "crafting/view.py"}
    assert relative(found, checkout) == {"attacks/pgd.py", "attacks/_loop.py", "geometry.py"} | engine
    assert relative(found & structure.engine(package), checkout) == engine


def test_a_command_touches_the_files_whose_functions_run(checkout: Path, tmp_path: Path) -> None:
    found = structure.traced(checkout, ("any", "command"), tmp_path)
    assert relative(found, checkout) == {"attacks/pgd.py", "attacks/_loop.py", "crafting/view.py"}


def test_a_command_that_fails_is_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / "src" / "holdfast" / "__main__.py").write_text("import sys\nsys.exit('no such recipe')\n")
    with pytest.raises(SystemExit, match=r"holdfast any command with .* failed: no such recipe"):
        structure.traced(checkout, ("any", "command"), tmp_path)


def test_the_table_has_a_column_for_each_checkout(checkout: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["structure.py", "--no-commands", str(checkout), str(ROOT)])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert structure.main() == 0
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["", "checkout", ROOT.name]
    assert {len(row) for row in table} == {3}
    figures = {name: first for name, first, _ in table}
    assert figures["files"] == str(len(FILES))
    assert figures["most files in one folder"] == "4 (.)"
    assert figures["function length: median / p90 / maximum"] == "3 / 6.1 / 7"  # of 2, 2, 4 and 7
    assert figures["longest function"] == "attacks/_loop.py: loop"
    assert figures["modules over 300 lines"] == "0"
    assert figures["PGD end to end"] == "5 files, 29 lines"
    assert figures["PGD without the engine"] == "3 files, 26 lines"
    assert figures["pairs of places that repeat six or more lines"] == "not measured"


def test_pairs_are_counted_by_the_program_that_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "duplicates"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for said, counted in (("12 pairs of places (3 files read)", "12"), ("no duplicates (3 files read)", "0")):
        program.write_text(f"#!/bin/sh\necho '{said}'\n")
        program.chmod(0o755)
        assert structure.repeated(tmp_path) == counted
