"""The code in README and docs runs as printed, and the recipe there loads."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.run import config

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/coming-from.md", "docs/your-model.md", "docs/adaptive-attacks.md"]


class Net(nn.Module):
    """What the pages call `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer4, self.head = nn.Linear(48, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer4(x.flatten(1)).relu())


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


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
    (text,) = blocks("docs/recipes.md", "toml")
    table = tomllib.loads(text)
    base = table.pop("base")
    recipe = config.read(table, "the page")
    assert base in config.names()
    assert list(recipe.methods) == ["AT", "TLA", "TRADES + HE + triplet"]
    assert recipe.methods["TLA"].train.init_from == "AT"
