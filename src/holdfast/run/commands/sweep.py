"""`holdfast sweep`: a hyperparameter search, compared on validation samples."""

from typing import Annotated

import typer

from holdfast.progress import Progress
from holdfast.run.commands import options


def sweep(
    recipe: options.Recipe,
    over: options.Over = [],  # noqa: B006
    method: Annotated[
        str | None, typer.Option("--method", help="The method to sweep; needed if the recipe has several.")
    ] = None,
    trials: options.Trials = None,
    sampler: options.Sampler = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The seed of the recipe with which every trial is trained; default the first."),
    ] = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    changes: options.Changes = [],  # noqa: B006
    device: options.Device = "auto",
) -> None:
    """Train one method with many values of some keys and find the best on validation samples; no test sample is used.

    holdfast sweep quickstart --method AT --over train.optimizer.lr=1e-4..1e-1:log --over 'train.batch=[32,64]'

    The same command resumes an interrupted sweep, and several processes share the trials.

    OUT/sweep/METHOD holds the table (trials.csv, trials.md), the report (sweep.html) and the model of every trial.

    The last line of the output is the command that trains with the best values.
    """
    from holdfast.report.sweep import text_sweep
    from holdfast.run import sweep as sweeps

    wanted = sweeps.read(recipe, changes, over=over, method=method, seed=seed, sampler=sampler, trials=trials)
    wanted = wanted.called_with(data_dir, device)
    with Progress() as progress:
        session = options.open_session(wanted.recipe, out, data_dir, device, progress)
        result = sweeps.run(wanted, session)
    print(text_sweep(result))
    print(f"report: {session.out / 'sweep' / wanted.method / 'sweep.html'}")
    if result.command:
        print(f"train the best: {result.command}")
