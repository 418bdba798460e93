"""The first screen of a study's page: the question, the answer in plain words, one figure, what would change it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from holdfast.report.analysis import Analysis
from holdfast.report.elements.dots import attacks_plot, home_plot, methods_plot, middle, proved_plot
from holdfast.report.elements.figures import Plot
from holdfast.report.elements.format import attack_text, eps_text, listed, percent, points_text, range_text
from holdfast.report.elements.table import Cell
from holdfast.report.page import Opening
from holdfast.report.study import Run, Study, analysis_of, by_name
from holdfast.report.summary import against, certificate_facts, clean_accuracy, compared, curve, proved, robust_accuracy

_MOVES = {
    "linf": "every input value by up to {}",
    "l2": "each input by a Euclidean distance of up to {}",
    "l1": "each input by up to {} in total",
    "l0": "up to {} pixels of each input",
}


_UNDEFENDED = {"plain": "plain (no defense)"}  # the name that recipes give to training without one


def opening(study: Study) -> Opening:
    """The first screen of a study."""
    return Opening(
        question=question(study),
        answer=answer(study),
        plot=_plot(study),
        changes=list(_changes(study)),
        terms=study.terms,
    )


def _plot(study: Study) -> Plot | None:
    if _only_inside(study):
        return home_plot(study)
    if not robust_accuracy(study):
        return proved_plot(study)
    return methods_plot(study) if len(study.attacked()) > 1 else attacks_plot(study)


def _only_inside(study: Study) -> bool:
    """True if features were analyzed and nothing else was measured."""
    return bool(study.analyzed()) and not study.attacks() and not study.certified()


def question(study: Study) -> str:
    """What the study asks, from its threat or its certificates."""
    if _only_inside(study):
        return "Where does an attack move the features, and can that be detected?"
    models = list(study.attacked() or study.titles)
    who = models[0] if len(models) == 1 else "each model"
    if study.norm is not None and study.eps is not None:
        moves = _MOVES.get(study.norm, f"each input by {study.norm} distance {{}}").format(eps_text(study.eps))
        return f"How many samples does {who} still classify correctly when an attacker may change {moves}?"
    if study.certified():
        return f"For how many samples is it proved that {who} keeps its correct prediction under small changes?"
    return f"How many samples does {who} classify correctly?"


def answer(study: Study) -> list[str]:
    """The answer in plain sentences, the main one first."""
    if _only_inside(study):
        return list(_inside({title: [analysis_of(run) for run in runs] for title, runs in study.analyzed().items()}))
    cells, clean = robust_accuracy(study), clean_accuracy(study)
    known = {title: cell for title, cell in (cells or clean).items() if cell.spread}
    found = []
    if not known and study.attacked():
        return ["No sample was evaluated."]
    if known and not cells:
        found.append(f"{_each(known)} without attack; no attack was run.")
    elif known:
        found += [_robust_answer(study, known), _clean_answer({title: clean[title] for title in known}, study)]
    return [*found, *_certified_answer(study)]


def _inside(models: Mapping[str, Sequence[Analysis]]) -> Iterator[str]:
    """Where the attack moves the features, and whether a detector finds what it misclassifies."""
    first = next(iter(models.values()))[0]
    before, after = (
        {title: fmean(1 - one.drift.home[at].value for one in found) for title, found in models.items()}
        for at in (0, -1)
    )
    yield (
        f"After {first.under[-1].name} the features of {_span(after, _percentage)} of the followed samples are nearest "
        f"to the mean of a false class, without attack those of {_span(before, _percentage)}."
    )
    pairs = {
        title: [(under.detection, under.detection_aware) for under in (one.under[-1] for one in found)]
        for title, found in models.items()
    }
    known = {title: each for title, each in pairs.items() if all(0 < d.wrong < d.n for pair in each for d in pair)}
    if known:
        blind, aware = (
            {title: fmean(pair[i].auc.value for pair in each) for title, each in known.items()} for i in (0, 1)
        )
        yield (
            f"A detector tells misclassified samples from others with an AUC of {_span(blind, _two_digits)} (0.5 is "
            f"chance), and of {_span(aware, _two_digits)} if the attack knows it."
        )


def _span(values: Mapping[str, float], text: Callable[[float], str]) -> str:
    """The one value, or the lowest and the highest with their names."""
    low, high = (pick(values, key=lambda title: values[title]) for pick in (min, max))
    if text(values[low]) == text(values[high]):
        return text(values[low])
    return f"{text(values[low])} ({low}) to {text(values[high])} ({high})"


def _percentage(value: float) -> str:
    return f"{percent(value)} %"


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def tiers(study: Study) -> list[list[str]]:
    """Groups of models between which no paired test found a difference, the most robust group first."""
    cells = {title: cell for title, cell in robust_accuracy(study).items() if cell.spread}
    pairs, _ = compared(study)
    tested = {frozenset((pair.first, pair.second)) for pair in pairs}
    alike = tested - {frozenset((pair.first, pair.second)) for pair in pairs if pair.lead}
    found: list[list[str]] = []
    for title in sorted(cells, key=lambda title: -cells[title].mean):
        if found and all(frozenset((title, other)) in alike for other in found[-1]):
            found[-1].append(title)
        else:
            found.append([title])
    return found


def _robust_answer(study: Study, cells: dict[str, Cell]) -> str:
    top, *others = tiers(study)
    bound = "at most " if study.unmeasured() else ""
    values = range_text([cells[title].mean for title in top])
    first = f"{listed(top)} keep{'s' * (len(top) == 1)} {bound}{values} % of the samples correct under attack"
    if len(top) > 1:
        first += ", with no significant difference between them"
    elif others and _leads_all(study, top[0]):
        first += ", significantly more than every other model"
    elif not others:
        first += f" (95 % interval {percent(cells[top[0]].low)} to {percent(cells[top[0]].high)})"
    return "; ".join([first, *_rest(others, cells)]) + "."


def _rest(others: Sequence[Sequence[str]], cells: dict[str, Cell]) -> Iterator[str]:
    """The groups after the first; of many only the last, because a sentence holds no table."""
    between = [title for tier in others[:-1] for title in tier]
    shown = others if len(others) <= 2 else others[-1:]
    if len(shown) < len(others):
        values = range_text([cells[title].mean for title in between])
        yield f"{len(between)} models in between keep {values} %"
    for tier in shown:
        names = listed([_UNDEFENDED.get(title, title) for title in tier])
        yield f"{names} keep{'s' * (len(tier) == 1)} {range_text([cells[title].mean for title in tier])} %"


def _leads_all(study: Study, best: str) -> bool:
    pairs, _ = compared(study)
    leads = [pair.lead if pair.first == best else -pair.lead for pair in pairs if best in (pair.first, pair.second)]
    met = {title for pair in pairs for title in (pair.first, pair.second) if best in (pair.first, pair.second)}
    return set(leads) == {1} and met == set(study.attacked())


def _clean_answer(clean: dict[str, Cell], study: Study) -> str:
    best = max(clean, key=lambda title: clean[title].mean)
    top = tiers(study)[0]
    if len(clean) == 1 or best in top:
        return f"Without attack: {_each(clean)}."
    lost = max(clean[best].mean - clean[title].mean for title in top)
    who = f"{top[0]} loses" if len(top) == 1 else "they lose up to"
    return f"Without attack {who} {points_text(lost)} against {best} ({percent(clean[best].mean)} %)."


def _each(cells: dict[str, Cell]) -> str:
    return f"{_span({title: cell.mean for title, cell in cells.items()}, _percentage)} correct"


def _certified_answer(study: Study) -> Iterator[str]:
    """The certified samples at the middle radius, for each norm and group, and by which of several certifiers."""
    several = len({certificate for _, certificate in study.certified()}) > 1
    for (group, certificate), runs in study.certified().items() if study.radii else ():
        radius = middle(study.radii)
        cells = {name: proved(same, certificate, radius) for name, same in by_name(runs).items()}
        cells = {name: cell for name, cell in cells.items() if cell.spread}
        if cells:
            norm, _, name = certificate.partition(":")
            where = f"{norm} radius {eps_text(radius)}{f' by {name}' * several}" + f" with {group}" * bool(group)
            where += _of_what(runs, certificate)
            yield f"Correct and proved within {where}: {_each(cells).removesuffix(' correct')}."


def _of_what(runs: Sequence[Run], certificate: str) -> str:
    """In parentheses, what is proved if that is not the classifier itself, and how likely a radius is wrong."""
    said = [f"of {what}" for what in certificate_facts(runs, certificate, "certifies")]
    chances = certificate_facts(runs, certificate, "alpha")
    said += [f"each radius is wrong with a probability of at most {alpha:g}" for alpha in chances]
    return f" ({'; '.join(said)})" * bool(said)


def _proved(study: Study) -> dict[str, Cell]:
    """The certified samples of the first norm and group at the middle radius."""
    found = next(iter(study.certified().items()), None)
    if found is None or not study.radii:
        return {}
    return {name: proved(runs, found[0][1], middle(study.radii)) for name, runs in by_name(found[1]).items()}


def _changes(study: Study) -> Iterator[str]:
    """What would change the answer: other attacks, threats, samples and seeds, with their measured sizes."""
    if study.stated_attacks():
        yield _stronger(study)
    yield from _other_eps(study)
    if study.certified():
        yield "A tighter bound: samples that are not proved may be robust all the same."
    cells = robust_accuracy(study) or clean_accuracy(study) or _proved(study)
    cells = {title: cell for title, cell in cells.items() if cell.spread}
    widths = [share.high - share.low for cell in cells.values() for share in cell.known]
    if _only_inside(study):
        ends = [analysis_of(run).drift.home[-1] for runs in study.analyzed().values() for run in runs]
        widths = [share.high - share.low for share in ends]
    width = max(widths, default=0.0) / 2
    if width:
        yield f"Other samples: the 95 % interval of a model reaches up to {points_text(width)} to each side."
    yield from _other_seeds(study, cells)


def _stronger(study: Study) -> str:
    names, eps = study.stated_attacks(), study.eps or 0.0
    records = [run.records for runs in study.attacked().values() for run in runs]
    left = {
        name: [against(one, name, eps).value for one in records if name in one.attacks and len(one)] for name in names
    }
    left = {name: values for name, values in left.items() if values}
    if not left:
        return "A stronger attack: accuracy under attack is an upper bound."
    hardest = min(left, key=lambda name: sum(left[name]) / len(left[name]))
    many = "1 attack was" if len(names) == 1 else f"{len(names)} attacks were"
    strongest = "" if len(names) == 1 else f", the strongest of them {attack_text(hardest)}"
    return f"A stronger attack: {many} run{strongest}; accuracy under attack is an upper bound."


def _other_eps(study: Study) -> Iterator[str]:
    """The best accuracy at the next measured eps above the stated one."""
    if study.norm is None or study.eps is None:
        return
    larger = sorted({a.eps for a in study.attacks().values() if a.norm == study.norm and study.eps < a.eps < 1e9})
    groups = {title: [run.records for run in runs] for title, runs in study.attacked().items()}
    for eps in larger[:1]:
        points = {title: curve(records, study.norm, [eps])[0] for title, records in groups.items()}
        known = {title: point.cell.mean for title, point in points.items() if point.measured and point.cell.known}
        if known:
            best = max(known, key=lambda title: known[title])
            where = f"{study.norm} eps {eps_text(eps)}"
            kept = f"keeps {percent(known[best])} % under all attacks within it"
            yield f"A larger eps: at {where} the most robust model ({best}) {kept}."
    if study.norms() == [study.norm]:
        yield f"Another kind of change: only {study.norm} attacks were run."


def _other_seeds(study: Study, cells: dict[str, Cell]) -> Iterator[str]:
    if not any(run.trained for run in study.runs):
        return
    spreads = [cell.spread.std for cell in cells.values() if cell.spread and cell.spread.std is not None]
    if len(spreads) < len(cells):
        yield "Training again: one seed does not show how much a retrained model would differ."
    elif spreads:
        yield f"Training again: over seeds the accuracy has a standard deviation of up to {points_text(max(spreads))}."
