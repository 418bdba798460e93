"""The tables and sentences of a page as text, for the terminal and for Markdown documents."""

from collections.abc import Iterator, Sequence

from holdfast.report.elements.format import eps_text, plain
from holdfast.report.elements.table import cell_text, listing, markdown_table
from holdfast.report.opening import answer
from holdfast.report.page import Section
from holdfast.report.sections import sections
from holdfast.report.sections.provenance import all_makers
from holdfast.report.sections.training import training_table
from holdfast.report.study import Study
from holdfast.report.summary import clean_accuracy, robust_accuracy


def text_table(study: Study) -> str:
    """The numbers of the page as Markdown that also reads well in a terminal."""
    return "\n\n".join([*text_parts(sections(study)), plain(" ".join(answer(study)))]) + "\n"


def text_summary(study: Study) -> str:
    """The clean and robust accuracy of each model, and the warnings; all tables if nothing else was measured."""
    robust, clean = robust_accuracy(study), clean_accuracy(study)
    if not robust or study.certified():
        return text_table(study)
    rows = [[title, cell_text(clean[title]), cell_text(cell)] for title, cell in robust.items()]
    threat = f"{study.norm} eps {eps_text(study.eps or 0.0)}"
    words = f"Accuracy in percent, with 95 % intervals; the worst case is over all attacks at {threat}."
    warnings = [f"Warning: {warning}" for section in sections(study) for warning in section.warnings]
    table = markdown_table(listing(("Method", "Clean", "Worst case"), rows))
    return "\n\n".join([table, *map(plain, [words, *warnings])]) + "\n"


def text_parts(shown: Sequence[Section]) -> Iterator[str]:
    """The paragraphs and tables of the sections that are also text, then the warnings of all sections."""
    for section in shown:
        if section.in_text:
            for table in section.tables:
                if not table.folded:
                    yield from [plain(f"{table.caption}:")] * bool(table.caption)
                    yield markdown_table(table)
            yield from (plain(" ".join(part)) for part in (section.sentences, section.findings) if part)
    yield from (plain(f"Warning: {warning}") for section in shown for warning in section.warnings)


def markdown(study: Study, made_by: str, written_by: str = "") -> str:
    """A study as a Markdown document that names the commands which made the numbers and wrote the document."""
    made = f"Made by `{made_by}`" + (f", written by `{written_by}`." if written_by else ".")
    training = training_table(study)
    tables = [] if training is None else [markdown_table(training)]
    versions = [f"Versions: {maker.versions_text(without=['platform'])}." for maker in all_makers(study)]
    head = [inert(plain(f"# {study.title}")), inert(plain(study.description)), made]
    body = [text_table(study).strip(), *tables, *dict.fromkeys(map(plain, versions))]
    return "\n\n".join([*head, *map(inert, body)]) + "\n"


def inert(text: str) -> str:
    """Markdown in which no name starts an HTML element."""
    return text.replace("<", "&lt;")
