"""`holdfast certify`: metrics for nearest neighbors and their certified radii."""

from typing import Annotated

import typer

from holdfast.recipes import schema
from holdfast.run.commands.options import (
    Changes,
    DataDir,
    Device,
    Markdown,
    Out,
    Recipe,
    Seed,
    check_file,
    default_out,
    open_session,
)
from holdfast.run.progress import Progress


def certify(
    recipe: Recipe,
    metric: Annotated[str | None, typer.Option("--metric", help="Only this metric of the recipe; default all.")] = None,
    seed: Seed = None,
    out: Out = None,
    data_dir: DataDir = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Learn the metrics of a recipe and certify radii for their nearest neighbors; run again to resume."""
    from holdfast.run import study
    from holdfast.run.report import write_report

    loaded = schema.load(recipe, changes)
    if not loaded.metrics:
        raise ValueError(f"{recipe} has no [certify] section, so it has nothing to certify; use `holdfast run`")
    check_file(markdown, "--markdown")
    chosen = study.rows(loaded, ("metrics",), metric, seed)
    study.report_on(loaded, default_out(loaded, out), besides=chosen)  # refuse now what the report would refuse
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        for row in chosen:
            study.prepare(session, [row])
            study.evaluate(session, [row])
    write_report(loaded, session.out, markdown)
