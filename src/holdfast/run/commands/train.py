"""`holdfast train`: the models of a recipe, or the user's own."""

from shlex import quote
from typing import Annotated, Any

import typer

from holdfast.progress import Progress
from holdfast.recipes import schema
from holdfast.run.commands import options


def train(
    recipe: options.MaybeRecipe = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="Only this method of the recipe; with --model, the method with its settings as in recipes, e.g. tla "
            "or trades:beta=6 (`holdfast list methods`).",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Only this seed of the recipe; with --model, the seed of the training.")
    ] = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    changes: options.Changes = [],  # noqa: B006
    device: options.Device = "auto",
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    size: options.Size = None,
    mean: options.Mean = None,
    std: options.Std = None,
    threat: options.Against = None,
    epochs: options.Epochs = None,
) -> None:
    """Train the models of a recipe; a stopped run resumes and ends with bit-identical weights.

    Your own model needs no recipe:

    holdfast train --model nets:build --data imagefolder:photos --threat linf:8/255 --method tla

    --weights are those it starts from, and --set changes any other setting, e.g. --set train.batch=128. Another method
    with the same --out is added; `holdfast evaluate OUT` attacks all of them and writes the report.
    """
    from holdfast.run import own_training, study

    given: dict[str, Any] = {"weights": weights, "data": data, "size": size, "mean": mean, "std": std}
    given |= {"threat": threat, "epochs": epochs}
    options.check_subject(recipe, model, {}, given)
    if model is None:
        loaded = schema.load(str(recipe), changes)
        chosen = study.rows(loaded, ("methods",), method, seed)
    else:
        loaded = own_training.read_training(model, method=method, **given, seed=seed, changes=changes)
        chosen = study.rows(loaded, ("methods",))
        own_training.with_methods(loaded, options.default_out(loaded, out))  # refuses what could not be added
    with Progress() as progress:
        session = options.open_session(loaded, out, data_dir, device, progress)
        study.prepare(session, chosen)
    if model is None:
        print(f"weights: {session.out}")
        return
    own_training.write_recipe(own_training.with_methods(loaded, session.out), session.out)
    for row in chosen:
        print(f"weights: {study.folders(loaded, session.out, row)[0][1] / 'best.safetensors'}")
    print(f"next: holdfast evaluate {quote(str(session.out))}")
