"""`holdfast evaluate`: trained models, or the user's own, under attack."""

from typing import Annotated, Any

import typer

from holdfast.recipes import schema
from holdfast.run.commands.options import (
    Against,
    Arithmetic,
    Attacks,
    Changes,
    Crafting,
    Data,
    DataDir,
    Device,
    Mean,
    Method,
    Model,
    Out,
    Samples,
    Size,
    Std,
    Weights,
    check_subject,
    default_out,
    open_session,
)
from holdfast.run.progress import Progress


def evaluate(
    recipe: Annotated[str | None, typer.Argument(help="A recipe name or the path of a .toml file.")] = None,
    method: Method = None,
    seed: Annotated[
        int | None, typer.Option(help="Only this seed of the recipe; with --model, the seed of the attacks.")
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
    model: Model = None,
    weights: Weights = None,
    data: Data = None,
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    threat: Against = None,
    attack: Attacks = [],  # noqa: B006
    samples: Samples = None,
    arithmetic: Arithmetic = None,
    crafting: Crafting = None,
) -> None:
    """Attack trained models and write records and the report; run again to resume.

    Your own model needs no recipe:

    holdfast evaluate --model nets:build --weights best.pt --data imagefolder:photos --threat linf:8/255
    """
    from holdfast.run import own_recipe, study
    from holdfast.run.report import write_report

    options: dict[str, Any] = {"weights": weights, "data": data, "size": size, "mean": mean, "std": std}
    options |= {"threat": threat, "attack": attack, "samples": samples}
    options |= {"arithmetic": arithmetic, "crafting": crafting}
    check_subject(recipe, model, {"method": method, "set": changes}, options)
    if model is not None:
        loaded = own_recipe.read(model, **options, seed=seed)
        chosen = study.rows(loaded)
    else:
        loaded = schema.load(str(recipe), changes)
        chosen = study.rows(loaded, ("methods", "models"), method, seed)
    study.report_on(loaded, default_out(loaded, out), besides=chosen)  # refuse now what the report would refuse
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        study.evaluate(session, chosen)
    write_report(loaded, session.out, None)
