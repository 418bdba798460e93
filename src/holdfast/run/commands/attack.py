"""`holdfast attack`: adversarial examples for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.members import unknown
from holdfast.progress import Progress
from holdfast.recipes import schema
from holdfast.run.commands.options import Changes, DataDir, Device, Out, Recipe, check_file, open_session


def attack(
    recipe: Recipe,
    method: Annotated[str, typer.Argument(help="The method or model of the recipe that is attacked.")],
    name: Annotated[str, typer.Argument(metavar="ATTACK", help="An attack of the recipe.")],
    save: Annotated[Path, typer.Option("--save", help="The .npz file for the adversarial examples.")],
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of the model; default the first.")] = None,
    levels: Annotated[
        int | None,
        typer.Option(
            "--round",
            metavar="LEVELS",
            help="Round to multiples of 1/LEVELS (255: as image files do) before evaluating.",
        ),
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Save adversarial examples of a trained model: x, x_adv, y, label, fooled, distance as one .npz file."""
    from holdfast.run.examples import save_examples
    from holdfast.run.study import NETWORKS, rows

    loaded = schema.load(recipe, changes)
    if name not in loaded.attacks:
        raise ValueError(unknown(f"attack {name!r}", name, loaded.attacks))
    if levels is not None and levels < 1:
        raise ValueError(f"--round is {levels} but needs at least one level; 255 rounds as image files do")
    check_file(save, "--save")
    row = rows(loaded, NETWORKS, method, seed)[0]
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        print(save_examples(session, row, name, levels, save))
