"""Runs the code of docs/tasks.md with every library that is installed, on a small network and random images."""

import re
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

PAGE = Path(__file__).parents[1] / "docs" / "tasks.md"
PACKAGES = {"foolbox": "foolbox", "torchattacks": "torchattacks", "ART": "art", "RobustBench": "robustbench"}
PACKAGES |= {"holdfast": "holdfast"}


class Net(nn.Module):
    """A small network for images of 3 x 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().flatten(1))


def given() -> dict[str, Any]:
    """What the page says is given."""
    torch.manual_seed(0)
    x, y, model = torch.rand(40, 3, 8, 8), torch.arange(40) % 10, Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    flat = x.flatten(1)[:, :20]
    names = {"torch": torch, "x": x, "y": y, "targets": (y + 1) % 10, "optimizer": optimizer}
    names |= {"model": model.eval(), "before": model, "after": model, "classifier": None}
    return names | {"loader": DataLoader(TensorDataset(x, y), batch_size=20), "flat": flat}


def snippets(text: str) -> Iterator[tuple[str, str, str]]:
    """The task, the library and the code of each block of the page."""
    for task in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        for library, code in re.findall(r"```python\n# (\S+)\n(.*?)```", task, re.DOTALL):
            yield task.partition("\n")[0], library, code


def names_for(task: str) -> dict[str, Any]:
    """What is given for a task; samples of a scikit-learn classifier are flat."""
    names = given()
    if "scikit-learn" in task:
        flat, y = names["flat"], names["y"]
        names |= {"x": flat, "classifier": LogisticRegression(C=10).fit(flat.numpy(), y.numpy())}
    return names


def main() -> None:
    """Run every snippet; exit with 1 if one of an installed library fails."""
    failed = False
    for task, library, code in snippets(PAGE.read_text(encoding="utf-8")):
        if find_spec(PACKAGES[library]) is None:
            print(f"{task}: {library} is not installed")
            continue
        try:
            exec(compile(code, library, "exec"), names_for(task))
            print(f"{task}: {library} runs")
        except ModuleNotFoundError as error:
            print(f"{task}: {library} is not complete: {error}")
        except Exception:
            failed = True
            print(f"{task}: {library} FAILS\n{traceback.format_exc(limit=3)}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
