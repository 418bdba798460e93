"""The page of the ledger, and the same as Markdown."""

import math
from collections.abc import Iterator, Sequence

from holdfast.report.elements.format import listed, p_text, plain
from holdfast.report.elements.table import UNKNOWN, Table, listing, markdown_table
from holdfast.report.ledger.budget import timed_on
from holdfast.report.ledger.claims import Claim, Figure, published
from holdfast.report.ledger.comparison import Comparison, visible
from holdfast.report.ledger.outcome import Outcome
from holdfast.report.page import Opening, Page, Section

Ledger = Sequence[Sequence[Outcome]]
"""What the recipes say about each claim; the one that counts is first."""

_VERDICTS = ("holds", "does not hold", "not decided", "no run")
_DIFFER = 0.10  # share of samples that only one of two models classifies correctly; about what we measured


def ledger_page(ledger: Ledger, notes: Sequence[str] = ()) -> Page:
    """The page of all claims; ``notes`` say what was not read."""
    return Page(
        name="ledger",
        title="Claims and what our runs say of them",
        opening=Opening(
            question="Does TLA do what its paper says?",
            answer=[counted(ledger), *_settings(ledger), *_by_verdict(ledger)],
        ),
        sections=[_overview(ledger, notes), _criterion(), *(_section(each) for each in ledger)],
        footer="Every number is computed from per-sample records, or published where it says so.",
    )


def markdown(page: Page) -> str:
    """The page as a Markdown document."""
    parts = [f"# {page.title}", plain(" ".join(page.opening.answer))]
    for section in page.sections:
        parts += [f"## {plain(section.title)}", *(plain(text) for text in section.sentences)]
        for table in section.tables:
            parts += [*([f"{plain(table.caption)}:"] if table.caption else []), markdown_table(table)]
        parts += [plain(text) for text in section.findings]
    return "\n\n".join([*parts, page.footer]) + "\n"


def counted(ledger: Ledger) -> str:
    """How many claims have each verdict."""
    counts = {verdict: len(_with(ledger, verdict)) for verdict in _VERDICTS}
    return (
        f"Of {len(ledger)} claims {counts['holds']} hold, {counts['does not hold']} do not hold, "
        f"{counts['not decided']} are not decided, and {counts['no run']} have no run yet."
    )


def verdicts(ledger: Ledger) -> Table:
    """The verdict on each claim, and the recipe that it rests on."""
    made = [[one.claim.id, one.verdict, one.answer.recipe if one.comparisons else UNKNOWN] for one, *_ in ledger]
    return listing(("Claim", "Verdict", "Recipe"), made)


def _settings(ledger: Ledger) -> Iterator[str]:
    """How many verdicts are not about the setting that was published."""
    decided = [*_with(ledger, "holds"), *_with(ledger, "does not hold")]
    differ = sum(bool(one.answer.differs) for one in decided)
    if differ:
        yield (
            f"{differ} of the {len(decided)} decided ones are about other networks or shorter training than published: "
            "the last column of the table says how they differ."
        )


def _with(ledger: Ledger, verdict: str) -> list[Outcome]:
    return [first for first, *_ in ledger if first.verdict == verdict]


def _by_verdict(ledger: Ledger) -> Iterator[str]:
    for verdict in _VERDICTS[:3]:
        if found := [one.claim.id for one in _with(ledger, verdict)]:
            yield f"{verdict[0].upper()}{verdict[1:]}: {listed(found)}."


def _overview(ledger: Ledger, notes: Sequence[str]) -> Section:
    titles = ("", "Claim", "Published in", "Verdict", "Weakest lead", "Published lead", "n", "Seeds", "Recipe")
    return Section(
        id="claims",
        title="Verdicts",
        sentences=[
            "Each claim compares methods in pairs; shown is the pair and measure with the smallest lead in standard "
            "errors, in percentage points unless it is a ratio, with its 95 % interval."
        ],
        tables=[listing(titles, [_line(first) for first, *_ in ledger], words=titles[1:5] + titles[8:])],
        warnings=notes,
        in_text=True,
    )


def _line(one: Outcome) -> list[str]:
    head = [one.claim.id, one.claim.statement, one.claim.paper, one.verdict]
    recipe = f"{one.answer.recipe} ({one.answer.differs})" if one.answer.differs else one.answer.recipe
    if not one.comparisons:
        return [*head, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]
    weakest = min(one.comparisons, key=lambda each: each.lead / each.error if each.error else math.inf)
    shown = f"{weakest.first} over {weakest.second} by {weakest.measure}: {_interval(weakest)}"
    return [*head, shown, _signed(one.lead(weakest)), str(weakest.n), _seeds(weakest), recipe]


def _criterion() -> Section:
    rows = [[f"{n:,}", *(f"{visible(n, k, _DIFFER):.2f}" for k in (1, 2, 4, 8))] for n in (500, 2000, 10_000)]
    seeds = ("one seed", "2 seeds", "4 seeds", "8 seeds")
    return Section(
        id="criterion",
        title="The criterion",
        sentences=[
            "Criteria are stored with the claims and fixed before runs are judged. Two methods are compared at every "
            "seed that both have, on the samples that all of these models have: the lead is the mean over seeds of the "
            "difference in accuracy. Its variance is the sum of that over samples, paired, and that over seeds: how "
            "much trainings of one method differ, pooled over the methods of the claim. Few seeds say little of it, so "
            "intervals take Student's t with degrees of freedom by Welch and Satterthwaite. Numbers without a value "
            "per sample (r, r', AUC, curvature) have the error of their bootstrap intervals, as if those of two models "
            "were independent.",
            "A claim holds if the 95 % interval of every lead lies above 0 and every seed agrees. It does not hold if "
            "some lead is below the smallest one that counts, which is stored with the claim: the upper end of its "
            "interval, at a level divided by the number of comparisons, lies below that. Else, and with fewer seeds "
            "than the claim asks for, it is not decided. Each claim is tested by itself: of twenty that are decided "
            "one may be decided wrongly. The p values are those of exact McNemar tests at each seed.",
            "What the test can see: the lead, in percentage points, that it finds in four of five cases if only one of "
            f"two models is right on {_DIFFER:.0%} of the samples and seeds differ no more than samples do. Published "
            "leads of 0.4 to 0.9 points need all test samples and several seeds.",
            f"Hours of training are reckoned from steps timed on {timed_on()}; judging comes on top.",
        ],
        tables=[listing(("Samples", *seeds), rows)],
        in_text=True,
    )


def _section(each: Sequence[Outcome]) -> Section:
    claim, made = each[0].claim, [one for one in each if one.comparisons]
    return Section(
        id=claim.id,
        title=f"{claim.id}: {each[0].verdict}",
        sentences=[f"{claim.statement} ({claim.paper}.) {_least(claim)}"],
        tables=[*map(_comparisons, made), _runs(each)],
        findings=[*_lacking(made), *_sources(claim)],
        in_text=True,
    )


def _least(claim: Claim) -> str:
    unit = "percentage points" if claim.unit == "points" else "(a ratio)"
    least = "Any lead counts" if claim.least == 0 else f"The smallest lead that counts is {claim.least:g} {unit}"
    return f"{least}; a verdict needs {claim.seeds} seeds."


def _comparisons(one: Outcome) -> Table:
    titles = ("Lead", "By", "Published", "Ours", "Lead with interval", "At each seed", "p", "Visible", "n", "Seeds", "")
    rows = [
        [
            f"{each.first} over {each.second}",
            each.measure,
            _signed(one.lead(each)),
            f"{each.values[0]:.2f} and {each.values[1]:.2f}",
            _interval(each),
            ", ".join(map(_signed, each.each)),
            ", ".join(map(p_text, each.ps)) or UNKNOWN,
            f"{each.visible:.2f}",
            str(each.n),
            _seeds(each),
            one.standing(each),
        ]
        for each in one.comparisons
    ]
    return listing(titles, rows, f"{one.answer.recipe}: {one.verdict}", words=("By", ""))


def _runs(each: Sequence[Outcome]) -> Table:
    """The recipes that answer a claim: what they say, and the command that makes them say more."""
    titles = ("Recipe", "Differs from the published setting", "Verdict", "To decide it", "Hours of one core")
    rows = [
        [one.answer.recipe, one.answer.differs or UNKNOWN, one.verdict, *(text or UNKNOWN for text in one.to_do)]
        for one in each
    ]
    return listing(titles, rows, "Runs that decide it", words=titles[1:3], code=titles[3:4])


def _lacking(made: Sequence[Outcome]) -> Iterator[str]:
    for one in made:
        if one.missing:
            lacking = [f"{first} and {second} by {measure}" for first, second, measure in one.missing]
            yield f"{one.answer.recipe} lacks {listed(lacking)}."


def _sources(claim: Claim) -> Iterator[str]:
    found = [figure for measure in claim.measures for figure in published(claim, measure).values()]
    if found:
        yield f"Published: {'; '.join(_source(measure, claim) for measure in claim.measures)}. {_notes(found)}".strip()


def _source(measure: str, claim: Claim) -> str:
    found = published(claim, measure)
    return f"{measure} {', '.join(f'{name} {figure.value:g}' for name, figure in found.items())}"


def _notes(found: Sequence[Figure]) -> str:
    tables = list(dict.fromkeys(f"{figure.paper}, {figure.table}" for figure in found))
    notes = list(dict.fromkeys(figure.note for figure in found if figure.note))
    return f"({'; '.join([*tables, *notes])})"


def _interval(one: Comparison) -> str:
    return f"{_signed(one.lead)} [{_signed(one.low)}, {_signed(one.high)}]"


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def _seeds(one: Comparison) -> str:
    return ", ".join(map(str, one.seeds))
