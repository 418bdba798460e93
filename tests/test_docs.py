"""The code in README and docs runs as printed, and the recipes there load."""

import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.recipes import schema, source
from holdfast.recipes.schema import Recipe
from holdfast.recipes.tables.analyze import AnalyzeConfig
from holdfast.recipes.tables.certify import certifier_table, read_certifier
from holdfast.records.records import Records
from holdfast.run import cli, study, sweep
from holdfast.run.cli import app
from holdfast.run.commands.list import KINDS

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/coming-from.md",
    "docs/your-model.md",
    "docs/adaptive-attacks.md",
    "docs/certificates.md",
    "docs/look-inside.md",
    "docs/metrics.md",
    "docs/speed.md",
]


class Net(nn.Module):
    """The `model` of the pages."""

    def __init__(self) -> None:
        super().__init__()
        self.layer4, self.head = nn.Linear(48, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer4(x.flatten(1)).relu())


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), {})
    shown, printed = (text.splitlines() for text in (blocks("README.md", "text")[0], capsys.readouterr().out))
    accuracy = re.compile(r"(.*\S) +(\d+\.\d) \[.*\]")
    rows = [[found.groups() for line in lines if (found := accuracy.fullmatch(line))] for lines in (shown, printed)]
    assert [name for name, _ in rows[0]] == [name for name, _ in rows[1]]
    for (_, before), (_, now) in zip(*rows, strict=True):
        assert float(now) == pytest.approx(float(before), abs=1)  # rounding differs between processors
    assert shown[-2] == printed[-2]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, x, y = Net(), torch.rand(6, 3, 4, 4), torch.arange(6)
    torch.save({"state_dict": model.state_dict()}, "checkpoint.pt")
    names = {
        "torch": torch,
        "model": model,
        "x": x,
        "y": y,
        "targets": (y + 1) % 10,
        "prototypes": torch.rand(6, 16),
        "loader": [(x, y)] * 2,
        "total": 2,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "x_train": torch.rand(60, 3, 4, 4),
        "y_train": torch.arange(60) % 10,
        "train_set": TensorDataset(torch.rand(60, 3, 4, 4), torch.arange(60) % 10),
        "test_set": TensorDataset(torch.rand(20, 3, 4, 4), torch.arange(20) % 10),
    }
    code = blocks(page, "python")
    assert code
    for block in code:
        exec(compile(block, page, "exec"), names)
    if "x_adv" in names:
        assert names["x_adv"].shape == x.shape


def test_the_recipe_of_the_page_loads() -> None:
    text, _ = blocks("docs/recipes.md", "toml")
    table = tomllib.loads(text)
    base = table.pop("base")
    recipe = schema.read(table, "the page")
    assert base in source.names()
    assert list(recipe.methods) == ["AT", "TLA", "TRADES + HE + triplet"]
    assert recipe.methods["TLA"].train.init_from == "AT"


def test_the_table_of_the_look_inside_loads_and_states_the_defaults() -> None:
    (text,) = blocks("docs/look-inside.md", "toml")
    given = tomllib.loads(text)
    table = schema.read({**source.table("quickstart"), **given}, "the page").table()["analyze"]
    assert json.loads(json.dumps(table)) == given["analyze"]  # every key is shown
    left_out = dict(re.findall(r"^(\w+) = .*left out: (\d+)$", text, re.MULTILINE))
    assert left_out
    assert all(int(value) == getattr(AnalyzeConfig(), key) for key, value in left_out.items())


def test_the_mixed_study_of_the_page_has_rows_of_every_kind(tmp_path: Path) -> None:
    _, text = blocks("docs/recipes.md", "toml")
    (tmp_path / "mixed.toml").write_text(text)
    recipe = schema.load(str(tmp_path / "mixed.toml"))
    assert "transfer" not in recipe.attacks
    given, resolved = tomllib.loads(text), json.loads(json.dumps(recipe.table()))
    assert resolved["models"] == given["models"]
    assert given["certify"].items() <= resolved["certify"].items()
    names = {table: list(dict.fromkeys(row.name for row in study.rows(recipe, [table]))) for table in study.TABLES}
    assert names == {"methods": ["plain", "AT"], "models": ["My network"], "metrics": ["Euclidean", "ARML"]}


def test_the_recipe_of_the_certificates_page_loads_over_its_base(tmp_path: Path) -> None:
    text, _, _ = blocks("docs/certificates.md", "toml")
    (tmp_path / "page.toml").write_text(text)
    given, recipe = tomllib.loads(text), schema.load(str(tmp_path / "page.toml"))
    resolved = json.loads(json.dumps(recipe.table()))
    assert resolved["certify"].items() >= given["certify"].items()
    assert resolved["metrics"]["ARML"] == given["metrics"]["ARML"]


def test_the_certificate_of_latent_neighbors_is_a_table_of_a_recipe() -> None:
    _, text, _ = blocks("docs/certificates.md", "toml")
    given = tomllib.loads(text)["certificates"]["latent"]
    written = certifier_table(read_certifier("latent", given))
    assert {key: written[key] for key in given} == given


def test_the_tables_of_smoothing_are_complete_for_a_recipe() -> None:
    _, _, text = blocks("docs/certificates.md", "toml")
    given = tomllib.loads(text)
    recipe = schema.read({**source.table("quickstart"), **given}, "page")
    written = json.loads(json.dumps(recipe.table()))
    assert given["certificates"]["smoothing"].items() <= written["certificates"]["smoothing"].items()
    assert given["methods"]["Gaussian"]["sigma"] == written["methods"]["Gaussian"]["sigma"]


def test_the_sweep_command_and_the_sweep_recipe_of_the_page_agree(tmp_path: Path) -> None:
    line = " ".join(blocks("docs/sweeps.md", "sh")).replace("\\\n", " ").splitlines()[1]
    words = shlex.split(line)
    assert words[:3] == ["holdfast", "sweep", "mnist-defences-small"]
    asked = {name: [words[i + 1] for i, word in enumerate(words) if word == name] for name in ("--over", "--trials")}
    (text,) = blocks("docs/sweeps.md", "toml")
    (tmp_path / "page.toml").write_text(text)
    typed = sweep.read(words[2], over=asked["--over"], method="TRADES", trials=int(asked["--trials"][0]))
    written = sweep.read(str(tmp_path / "page.toml"))
    assert written.space == typed.space
    assert written.identity() == typed.identity()
    assert written.trials == typed.trials == 30


def commands(page: str) -> list[list[str]]:
    """The arguments of each `holdfast evaluate --model` command of a page."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("holdfast evaluate --model")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that the commands use: nets.py as printed, matching weights, images."""
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks("docs/your-model.md", "python") if block.startswith("# nets.py")]
    (tmp_path / "nets.py").write_text(code)
    names: dict[str, Any] = {}
    exec(code, names)
    torch.save(names["build"]().state_dict(), "best.pt")
    draw = np.random.default_rng(0)
    for label in range(10):
        (tmp_path / "photos" / f"class-{label}").mkdir(parents=True)
        for i in range(2):
            pixels = draw.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / f"class-{label}" / f"{i}.png")
    yield tmp_path
    sys.modules.pop("nets", None)


@pytest.mark.parametrize("page", ["README.md", "docs/your-model.md"])
def test_the_evaluations_of_a_page_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [words for words in commands(page) if "nets:build" in words]
    assert found
    for words in found:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
    assert (folder / "runs" / "nets-build-best-photos-linf-8-255" / "report.html").is_file()
    if page != "README.md":
        records = Records.load(folder / "runs" / "l2" / "nets-build" / "seed-0" / "records")
        assert (len(records), list(records.attacks)) == (10, ["fgsm", "pgd:steps=20,step=1/10,restarts=2"])


def test_the_recipe_of_own_models_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = blocks("docs/your-model.md", "toml")
    (folder / "my-study.toml").write_text(text)
    (folder / "before.pt").write_bytes((folder / "best.pt").read_bytes())
    monkeypatch.setattr(sys, "argv", ["holdfast", "run", "my-study.toml"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    runs = folder / "runs" / "my-study"
    before, after = (Records.load(runs / name / "seed-0" / "records") for name in ("before", "after"))
    assert list(before.attacks) == list(after.attacks) == ["PGD-20"]
    assert (runs / "report.html").is_file()


def test_the_methods_of_own_networks_load_over_a_base(tmp_path: Path) -> None:
    _, text = blocks("docs/your-model.md", "toml")
    (tmp_path / "page.toml").write_text(f'base = "quickstart"\n{text}')
    recipe = schema.load(str(tmp_path / "page.toml"))
    assert recipe.model_of("TLA").module == "nets:build"
    other = recipe.model_of("TLA + HE")
    assert (other.encoder, other.module, other.head.name) == ("nets:encoder", None, "hypersphere")


def test_the_trainings_of_the_page_run(folder: Path, call: Any) -> None:
    for part in ("train", "test"):
        shutil.copytree(folder / "photos", folder / "laid-out" / part)
    shutil.rmtree(folder / "photos")
    (folder / "laid-out").rename(folder / "photos")
    lines = "\n".join(blocks("docs/your-model.md", "sh")).replace("\\\n", " ").splitlines()
    first, second, evaluation = (shlex.split(line)[1:] for line in lines[:3])
    assert first[:2] == second[:2] == ["train", "--model"]
    for words in (first, second):
        done = call(*words, "--set", "attacks={fgsm={}}", "--set", "evaluate={strip='fgsm'}")
        assert done.code == 0, done.err
    assert f"next: {shlex.join(['holdfast', *evaluation])}" in done.out
    done = call(*evaluation)
    assert done.code == 0, done.err
    assert (folder / evaluation[-1] / "report.html").is_file()


def test_the_other_evaluations_of_the_page_are_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [words for words in commands("docs/your-model.md") if "nets:build" not in words]
    assert len(found) == 2
    recipes: list[Recipe] = []

    def stop(recipe: Recipe, *_: object) -> None:
        recipes.append(recipe)
        raise ValueError("parsed")

    monkeypatch.setattr(study, "rows", stop)
    for words in found:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit):
            cli.main()
    assert [list(recipe.models) for recipe in recipes] == [["torchvision:resnet50"], ["layout:trades"]]
    (model,) = recipes[0].models.values()
    assert (recipes[0].data.size, model.std, recipes[0].evaluate.samples) == ((256, 224), (0.229, 0.224, 0.225), 1000)


def test_the_table_of_commands_is_complete() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `holdfast (\w+)", text, re.MULTILINE)
    known = [
        command.name or (command.callback.__name__ if command.callback else "") for command in app.registered_commands
    ]
    assert set(listed) == set(known)
    (kinds,) = re.findall(r"^\| `holdfast list attacks` \| (.*) \|$", text, re.MULTILINE)
    assert {"attacks", *re.findall(r"`(\w+)`", kinds)} == set(KINDS)


def test_every_recipe_is_on_the_page_of_recipes() -> None:
    text = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z0-9-]+)`", text))
    small = {f"{name}-small" for name in listed}
    assert [name for name in source.names() if name not in listed | small and not name.startswith("arml-")] == []


def written() -> list[Path]:
    """Every page of the repository."""
    return [page for folder in ("docs/**", ".", "benchmarks") for page in sorted(ROOT.glob(f"{folder}/*.md"))]


def printed(page: Path) -> list[list[str]]:
    """The words of every holdfast command of a page that has arguments: in blocks for a shell and in the text."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines += [" ".join(code.split()) for code in re.findall(r"`(holdfast [^`]+)`", prose)]
    words = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("holdfast ")]
    return [one for one in words if len(one) > 1 and one[0] != "COMMAND"]


@pytest.mark.parametrize("page", written(), ids=lambda page: page.name)
def test_commands_of_a_page_have_the_arguments_that_they_need(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for name, *arguments in printed(page):
        group.commands[name].make_context(name, arguments)  # raises if one is missing or unknown


@pytest.mark.parametrize("page", written(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [target for target in targets if "://" not in target]
    assert [target for target in inside if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", written(), ids=lambda page: page.name)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|c|toml))`", prose)
    places = [ROOT, ROOT / "src" / "holdfast", page.parent]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
