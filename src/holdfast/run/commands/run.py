"""`holdfast run`: a whole study."""

from holdfast.progress import Progress
from holdfast.recipes import schema
from holdfast.run.commands.options import Changes, DataDir, Device, Markdown, Out, Recipe, check_file, open_session


def run(
    recipe: Recipe,
    out: Out = None,
    data_dir: DataDir = None,
    markdown: Markdown = None,
    changes: Changes = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Train what is missing, evaluate and analyze it, and write the report; run again to resume."""
    from holdfast.report.text import text_summary
    from holdfast.run import study
    from holdfast.run.report import write_report

    loaded = schema.load(recipe, changes)
    check_file(markdown, "--markdown")
    with Progress() as progress:
        session = open_session(loaded, out, data_dir, device, progress)
        study.prepare(session, study.rows(loaded))
        study.evaluate(session, study.rows(loaded))
        if loaded.analyze is not None:
            study.analyze(session, study.rows(loaded))
    write_report(loaded, session.out, markdown, text_summary)
