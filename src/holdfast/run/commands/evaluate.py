"""`holdfast evaluate`: trained models, or the user's own, under attack."""

from typing import Annotated, Any

import typer

from holdfast.progress import Progress
from holdfast.recipes import schema
from holdfast.run.commands import options


def evaluate(
    recipe: options.MaybeRecipe = None,
    method: options.Method = None,
    seed: Annotated[
        int | None, typer.Option(help="Only this seed of the recipe; with --model, the seed of the attacks.")
    ] = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    changes: options.Changes = [],  # noqa: B006
    device: options.Device = "auto",
    confirm: options.Confirm = None,
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    size: options.Size = None,
    mean: options.Mean = None,
    std: options.Std = None,
    threat: options.Against = None,
    attack: options.Attacks = [],  # noqa: B006
    eps: options.Eps = None,
    samples: options.Samples = None,
    examples: options.Examples = None,
    arithmetic: options.Arithmetic = None,
    crafting: options.Crafting = None,
) -> None:
    """Attack trained models and write records and the report; run again to resume.

    Your own model needs no recipe:

    holdfast evaluate --model nets:build --weights best.pt --data imagefolder:photos --threat linf:8/255

    Other attacks and threats with the same --out are added to the results there; other data and seeds are refused.

    The folder of such results, and of `holdfast train --model`, can be given in place of a recipe.
    """
    from holdfast.run import own_recipe, own_training, study
    from holdfast.run.report import write_report
    from holdfast.run.subjects import own_models

    given: dict[str, Any] = {"weights": weights, "data": data, "size": size, "mean": mean, "std": std}
    given |= {"threat": threat, "attack": attack, "samples": samples, "arithmetic": arithmetic, "crafting": crafting}
    options.check_subject(recipe, model, {"method": method, "set": changes}, given | {"eps": eps, "examples": examples})
    if model is None:
        confirmed = [] if confirm is None else [f"evaluate.confirm={confirm}"]
        loaded = schema.load(str(recipe), [*changes, *confirmed])
    else:
        loaded = own_recipe.read(model, **given, eps=eps, seed=seed, confirm=confirm)
        if examples is None:
            loaded = own_recipe.with_stored(loaded, options.default_out(loaded, out))
    if examples is not None:
        options.check_new(out)
        with Progress(shown=False) as progress:
            session = options.open_session(loaded, out, data_dir, device, progress)
        judged = own_models.OwnModels(session).judged(str(model), seed or 0, examples)
        print(judged)
        if out is not None:
            judged.save(out)
            print(f"report: {judged.page(out / 'report.html')}")
        return
    chosen = study.rows(loaded, ("methods", "models"), method, seed)
    study.report_on(loaded, options.default_out(loaded, out), besides=chosen)  # refuse now what the report would refuse
    with Progress() as progress:
        session = options.open_session(loaded, out, data_dir, device, progress)
        if model is not None:
            own_models.OwnModels(session).check_samples(model, chosen[0].seed)
        study.evaluate(session, chosen)
    if model is not None:
        own_training.write_recipe(loaded, session.out)
    write_report(loaded, session.out, None)
