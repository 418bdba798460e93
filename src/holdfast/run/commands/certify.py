"""`holdfast certify`: certified radii of nearest neighbors and of networks."""

from typing import Annotated

import typer

from holdfast.progress import Progress
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


def certify(
    recipe: Recipe,
    metric: Annotated[
        str | None, typer.Option("--metric", help="Only this metric, method or model of the recipe; default all.")
    ] = None,
    seed: Seed = None,
    out: Out = None,
    data_dir: DataDir = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Learn metrics and certify radii for their nearest neighbors, and for networks; run again to resume.

    Networks are certified if the recipe has a table of certificates. They are trained first where that is still to do,
    and attacked too, because their records hold both.
    """
    from holdfast.run import study
    from holdfast.run.report import write_report

    loaded = schema.load(recipe, changes)
    if loaded.certify is None:
        raise ValueError(f"{recipe} has no [certify] section, so it has nothing to certify; use `holdfast run`")
    check_file(markdown, "--markdown")
    networks = ("methods", "models") if loaded.certificates else ()
    chosen = study.rows(loaded, ("metrics", *networks), metric, seed)
    study.report_on(loaded, default_out(loaded, out), besides=chosen)  # refuse now what the report would refuse
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        study.prepare(session, chosen)
        study.evaluate(session, chosen)
    write_report(loaded, session.out, markdown)
