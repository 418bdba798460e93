"""The files that CONTRIBUTING.md prints pass the checks of their kind in a copy of the repository.

The copy gets the added files and no other edit, which also shows that a new attack, method or certifier is one file.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from holdfast.records.records import Records

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", TEXT, re.DOTALL))
(RECIPE,) = re.findall(r"```toml\n# lipschitz.toml\n(.*?)```", TEXT, re.DOTALL)
# not printed: a method that crafts nothing but draws random numbers must pass the same checks
OTHERS = {
    "src/holdfast/methods/noise_augmented.py": '''"""Training on noisy samples."""

from dataclasses import dataclass

from torch import nn

from holdfast.contracts import Batch, Needs, Terms
from holdfast.methods._craft import passes
from holdfast.methods._cross_entropy import mean_cross_entropy
from holdfast.models.classifier import adapt
from holdfast.rng import Rng


@dataclass(frozen=True, kw_only=True)
class NoiseAugmented:
    """Cross entropy on samples with Gaussian noise of standard deviation ``std`` (Cohen et al. 2019)."""

    std: float = 0.1
    needs = Needs()

    def __call__(self, model: nn.Module, batch: Batch, *, progress: float, rng: Rng) -> Terms:
        """The loss on a batch."""
        out = adapt(model).outputs(batch.x + self.std * rng.normal(batch.x))
        entropy = mean_cross_entropy(model, out, batch.rows(), 0.0)
        return Terms(entropy, {"cross_entropy": entropy}, passes(batch), (out,))
'''
}
ADDED = FILES | OTHERS
CHECKS = {
    "src/holdfast/attacks": "tests/attacks/test_attack_members.py",
    "src/holdfast/certify": "tests/certify/test_certifier_members.py",
    "src/holdfast/methods": "tests/methods/test_method_members.py",
}


def kind(name: str) -> str:
    return Path(name).parent.as_posix()


def copy_with_added_files(folder: Path) -> None:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, text in ADDED.items():
        assert not (folder / name).exists()
        (folder / name).write_text(text, encoding="utf-8")


def run(folder: Path, *words: str) -> str:
    """Run a Python module in the copy, which must succeed, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_attacks_a_certifier_a_method_and_a_section_have_a_walk_through() -> None:
    assert sorted(kind(name) for name in FILES if name.startswith("src/")) == [
        "src/holdfast/attacks",
        "src/holdfast/attacks",
        "src/holdfast/attacks",
        "src/holdfast/certify",
        "src/holdfast/methods",
        "src/holdfast/report/sections",
    ]


def test_printed_files_pass_the_checks_of_their_kind(tmp_path: Path) -> None:
    """One process for all of them: to import torch takes as long as the checks."""
    copy_with_added_files(tmp_path)
    printed = [name for name in FILES if name.startswith("tests/")]
    stems = [Path(name).stem for name in ADDED]
    chosen = " or ".join([*stems, "test_public", "test_layers"])
    paths = [*CHECKS.values(), *printed, "tests/test_public.py", "tests/test_layers.py"]
    out = run(tmp_path, "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist", *paths, "-k", chosen)
    assert re.search(r"\d+ passed(, \d+ deselected)? in", out)  # none was skipped
    for name in ADDED:  # a section has no conformance test, so its printed test must be there
        tests = f"{re.escape(CHECKS.get(kind(name), ''))}\\S*{Path(name).stem}"
        assert len(re.findall(f"^{tests}", out, re.MULTILINE)) >= (10 if kind(name) in CHECKS else 1), name


def test_the_printed_recipe_names_the_printed_certifier(tmp_path: Path) -> None:
    copy_with_added_files(tmp_path)
    (tmp_path / "lipschitz.toml").write_text(RECIPE, encoding="utf-8")
    left_out = [*(f"methods.{name}" for name in ("AT", "ALP", "TLA")), "attacks.transfer"]
    small = ["seeds=[0]", "train.epochs=1", "evaluate.eps=[]", *(f"{name}=false" for name in left_out)]
    run(tmp_path, "holdfast", "run", "lipschitz.toml", "--out", "out", *(w for one in small for w in ("--set", one)))
    found = Records.load(tmp_path / "out" / "plain" / "seed-0" / "records")
    assert {"radius:l2:Lipschitz", "upper:l2:Lipschitz"} <= set(found.columns)
    assert found.certificates["Lipschitz"]["settings"] == {"name": "lipschitz", "slack": 1e-5}


def test_printed_files_are_formatted_and_pass_the_linter(tmp_path: Path) -> None:
    copy_with_added_files(tmp_path)
    run(tmp_path, "ruff", "check", "--no-cache", *ADDED)
    run(tmp_path, "ruff", "format", "--no-cache", "--check", *ADDED)


def test_files_and_folders_named_in_the_text_exist() -> None:
    named = set(
        re.findall(r"`((?:src|tests|docs|attacks|methods|certify|crafting|evaluation|report)/[\w/]+(?:\.py)?)/?`", TEXT)
    )
    assert len(named) > 5
    assert [name for name in named if not any((ROOT / top / name).exists() for top in ("", "src/holdfast"))] == []
