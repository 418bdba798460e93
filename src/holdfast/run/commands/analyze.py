"""`holdfast analyze`: what the features of networks do under attack."""

from typing import Annotated

import typer

from holdfast.progress import Progress
from holdfast.recipes import schema
from holdfast.run.commands.options import (
    Changes,
    DataDir,
    Device,
    Markdown,
    Method,
    Out,
    Seed,
    check_file,
    default_out,
    open_session,
)


def analyze(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE|RUN", help="A recipe name, a .toml file, or a folder of results.")
    ],
    method: Method = None,
    seed: Seed = None,
    out: Out = None,
    data_dir: DataDir = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Look inside networks: what their features do under attack. Writes the report; run again to resume.

    Networks are trained first where that is still to do. The table `analyze` of the recipe says what is measured; --set
    changes it, e.g. --set analyze.samples=500. A folder of results, also of `holdfast evaluate --model`, names its
    recipe itself.
    """
    from holdfast.run import study
    from holdfast.run.report import write_report

    loaded = schema.load(recipe, changes)
    folder = default_out(loaded, out)
    check_file(markdown, "--markdown")
    chosen = study.rows(loaded, ("methods", "models"), method, seed)
    study.report_on(loaded, folder, besides=chosen)  # refuse now what the report would refuse
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        study.prepare(session, chosen)
        study.analyze(session, chosen)
    write_report(loaded, folder, markdown, text=None)
