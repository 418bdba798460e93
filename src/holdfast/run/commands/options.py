"""Arguments and options that several commands share, their checks, and opening a session."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.progress import Progress
from holdfast.recipes import schema

if TYPE_CHECKING:
    from holdfast.run.session import Session

Recipe = Annotated[
    str,
    typer.Argument(
        help="A recipe name (`holdfast list recipes`), the path of a .toml file, or the folder of results of --model."
    ),
]
MaybeRecipe = Annotated[
    str | None,
    typer.Argument(help="A recipe name, the path of a .toml file, or the folder of results of --model."),
]
Changes = Annotated[
    list[str], typer.Option("--set", help="Change a recipe key, e.g. --set train.epochs=3 --set threat.eps=8/255.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for results; default: runs/NAME of the recipe, or of model, data and threat."),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of data files; default: the variable HOLDFAST_DATA.")
]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Also write the tables to this file as Markdown.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
Method = Annotated[str | None, typer.Option("--method", help="Only this method of the recipe; default all.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Only this seed of the recipe; default all.")]

Over = Annotated[
    list[str],
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="A key to vary, named as in --set, and its values: a range (0.5..20), a range on a logarithmic scale "
        "(1e-4..1e-1:log) or a list ([32, 64]). May be repeated; replaces the recipe's table sweep.over.",
    ),
]
Trials = Annotated[
    int | None,
    typer.Option("--trials", help="Total number of trials; default 20, or all of a grid. May be increased later."),
]
Sampler = Annotated[
    Literal["tpe", "random", "grid"] | None,
    typer.Option("--sampler", help="tpe (learns from earlier trials; default), random, or grid (every combination)."),
]

_OWN = "Your own model, in place of a recipe"
Model = Annotated[
    str | None,
    typer.Option(
        help="package.module:callable that returns an nn.Module, timm:NAME, torchvision:NAME, or layout:trades, "
        "layout:he, layout:madry, layout:madry-mnist for published checkpoints.",
        rich_help_panel=_OWN,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Its weights: a .safetensors file, or a torch checkpoint, of which only weights are read.",
        rich_help_panel=_OWN,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="imagefolder:PATH, npz:PATH or a name from `holdfast list data`.", rich_help_panel=_OWN),
]
Size = Annotated[
    str | None,
    typer.Option(
        help="Resize image files: 224 pixels, or 256:224 to resize to 256 and crop 224.", rich_help_panel=_OWN
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(help="Mean of each channel for normalizing inputs, e.g. 0.485,0.456,0.406.", rich_help_panel=_OWN),
]
Std = Annotated[
    str | None, typer.Option(help="Standard deviation of each channel, e.g. 0.229,0.224,0.225.", rich_help_panel=_OWN)
]
Against = Annotated[
    str | None,
    typer.Option("--threat", help="norm:eps or norm:eps:low:high, e.g. linf:8/255 or l2:0.5.", rich_help_panel=_OWN),
]
Attacks = Annotated[
    list[str],
    typer.Option(
        "--attack",
        help="An attack with settings as in recipes, e.g. pgd:steps=40,step=1/255; may be repeated. "
        "Default: noise, FGSM, PGD with 40 steps, and triage. --attack autoattack runs the standard suite.",
        rich_help_panel=_OWN,
    ),
]
Epochs = Annotated[
    int | None, typer.Option(help="Number of epochs; default 10. Others: --set train....", rich_help_panel=_OWN)
]
Confirm = Annotated[
    str | None,
    typer.Option(
        help="Run AutoAttack too on this many samples that triage leaves standing, drawn at random, or on all; the "
        "report says how much lower AutoAttack would be at most."
    ),
]
Eps = Annotated[
    str | None,
    typer.Option(
        help="Measure accuracy at these eps too, e.g. 2/255,4/255,16/255, with the last attack that is not a cascade.",
        rich_help_panel=_OWN,
    ),
]
Samples = Annotated[
    int | None, typer.Option(help="Number of test samples, evenly spaced; default all.", rich_help_panel=_OWN)
]
Examples = Annotated[
    Path | None,
    typer.Option(
        help="Judge adversarial examples made elsewhere, in place of attacks: a .npz file with the array x_adv, one "
        "example for each test sample, in their order.",
        rich_help_panel=_OWN,
    ),
]

Arithmetic = Annotated[
    Literal["auto", "float32", "bfloat16"] | None,
    typer.Option(help="Precision of attacks; evaluation is always float32. Default auto.", rich_help_panel=_OWN),
]
Crafting = Annotated[
    Literal["auto", "module"] | None,
    typer.Option(help="module: attacks call the model itself, not its fast form. Default auto.", rich_help_panel=_OWN),
]


def check_subject(recipe: str | None, model: str | None, of_recipe: dict[str, Any], of_model: dict[str, Any]) -> None:
    """Refuse options of --model with a recipe, and options of recipes with --model."""
    if recipe is not None and model is not None:
        raise ValueError(f"the recipe {recipe!r} and --model {model} were given but one is evaluated; leave one out")
    if recipe is None and model is None:
        raise ValueError(
            "name a recipe, or your own model, e.g. --model nets:build --data npz:my.npz --threat linf:0.1"
        )
    options, other = (of_model, "--model") if model is None else (of_recipe, "a recipe")
    if given := [f"--{name}" for name, value in options.items() if value not in (None, [])]:
        raise ValueError(f"{given[0]} goes with {other}; leave it out" + (" or use --set" if model is None else ""))


def check_file(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written before any work is done."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        problem = "is a folder" if path.is_dir() else f"lies in {path.parent}, which does not exist"
        raise ValueError(f"{option} names {path}, which {problem}; name a file in a folder that exists")


def check_new(out: Path | None) -> None:
    """Refuse a folder that has a page already, which another one would replace."""
    if out is not None and (out / "report.html").exists():
        raise ValueError(f"{out} has a report already, which would be replaced; choose another --out")


def default_out(recipe: schema.Recipe, out: Path | None) -> Path:
    """The folder for results: the one given, else one named after the recipe."""
    return recipe.default_out if out is None else out


def open_session(
    recipe: schema.Recipe, out: Path | None, data_dir: Path | None, device: str, progress: Progress
) -> "Session":
    """Load the data of a recipe and choose the device."""
    from holdfast.run.session import Session

    for note in recipe.notes:
        print(f"holdfast: {note}", file=sys.stderr)
    return Session.open(recipe, default_out(recipe, out), data_dir, device, progress.report)
