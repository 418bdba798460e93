"""Robust accuracy of each method against each attack, with the worst case over attacks first, and the main results."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from holdfast import attacks
from holdfast.members import first_paragraph, names
from holdfast.records.facts import AttackFacts, Draws
from holdfast.records.records import Records
from holdfast.report.crafted import crafted, unanswered
from holdfast.report.elements.figures import colors
from holdfast.report.elements.format import attack_words, eps_text, listed, percent
from holdfast.report.elements.table import UNKNOWN, Column, Measure, Table, listing, share_table
from holdfast.report.page import Section
from holdfast.report.study import Study
from holdfast.report.summary import Comparison, against, compared, robust_accuracy, worst
from holdfast.statistics import Share

ORDER = 10


def section(study: Study) -> Section | None:
    """The main table, attacks at other threats, and the settings of all attacks."""
    if not study.attacked():
        return None
    tables = [main_table(study), other_table(study), settings_table(study)]
    return Section(
        id="results",
        title="Results",
        sentences=[*_sentences(study), *_crafted(study), *_randomized(study), *_unanswered(study)],
        tables=[table for table in tables if table is not None],
        findings=verdicts(study),
        warnings=[
            *_outside(study),
            *_not_attacked(study),
            *_short(study),
            *_mixed(study),
            *study.notes,
            *_left_out(study),
        ],
        in_text=True,
    )


def _sentences(study: Study) -> list[str]:
    spread = "Brackets are 95 % Wilson intervals."
    if any(len(runs) > 1 for runs in study.attacked().values()):
        spread = "Over several seeds: mean ± standard deviation; brackets span the 95 % Wilson intervals of all seeds."
    if study.norm is None or study.eps is None:
        return ["Clean accuracy in percent of the samples.", spread]
    return [
        f"Robust accuracy in percent at {study.norm} eps {eps_text(study.eps)}: samples that are classified correctly "
        "and for which the attack found no adversarial example within eps.",
        "The worst case counts a sample as robust only if every attack failed on it.",
        spread,
    ]


def _crafted(study: Study) -> Iterator[str]:
    """How the attacks on networks computed, where the facts of runs tell."""
    attacked = [run for run in study.runs if run.records.attacks and "crafting" in run.records.facts]
    yield from crafted({run.label: run.records for run in attacked})


def main_table(study: Study) -> Table:
    """Clean accuracy, the worst case at the stated eps, and each attack that was run for this eps."""
    measures: list[tuple[Column, Measure]] = [(Column("Clean", "no attack"), _clean)]
    if study.norm is not None and study.eps is not None:
        # the worst case stands second: with many attacks a wide table scrolls, and this is the number to read
        norm, eps = study.norm, study.eps
        note = "upper bound: not attacked at this eps" if study.unmeasured() else f"over all {norm} attacks"
        column = Column("Worst case", note, highlighted=True)
        measures.append((column, lambda records: worst(records, norm, eps)))
    measures += [
        (_column(name, "minimal" if a.minimal else ""), _under(name, study.eps or 0.0))
        for name, a in study.stated_attacks().items()
    ]
    return share_table(study.attacked(), measures, colors(study.titles))


def other_table(study: Study) -> Table | None:
    """Attacks at another norm or eps than the stated one; None if there are none."""
    stated = study.stated_attacks()
    others = {name: a for name, a in study.attacks().items() if math.isfinite(a.eps) and name not in stated}
    measures = [
        (_column(_without_threat(name, a), f"{a.norm} {eps_text(a.eps)}"), _under(name, a.eps))
        for name, a in others.items()
    ]
    caption = "Attacks at another norm or eps, each at its own eps"
    return share_table(study.attacked(), measures, colors(study.titles), caption) if measures else None


def _without_threat(name: str, attack: AttackFacts) -> str:
    """The name of an attack that is named after its eps or its threat, which the note of its column says too."""
    return name.removesuffix(f"@{attack.eps:g}").removesuffix(f" at {attack.norm}:{eps_text(attack.eps)}")


def _column(name: str, note: str) -> Column:
    """The column of an attack; settings that its name holds stand below it."""
    kind, settings = attack_words(name)
    return Column(kind, ", ".join(filter(None, [settings, note])))


def settings_table(study: Study) -> Table | None:
    """What each attack is, its threat and its settings."""
    rows = [[name, _what(a), a.norm, eps_text(a.eps), *_settings(a)] for name, a in study.attacks().items()]
    titles = ("Attack", "What it is", "Norm", "eps", "Objective", "Settings")
    words = ("What it is", "Norm", "Objective", "Settings")
    return listing(titles, rows, "What the attacks are, and their settings", words=words, folded=True) if rows else None


def _what(attack: AttackFacts) -> str:
    """The attack in a few words: those that its file begins with; attacks of another library have none."""
    name = "transfer" if "source" in attack.settings else str(attack.settings.get("name", ""))
    known = name in names(attacks)
    return first_paragraph(import_module(f"{attacks.__name__}.{name}")) if known else UNKNOWN


def _settings(attack: AttackFacts) -> tuple[str, str]:
    goal = "smallest perturbation" if attack.minimal else "within eps"
    return goal, ", ".join(_words(attack.settings)) or UNKNOWN


def _words(settings: Mapping[str, Any]) -> Iterator[str]:
    """Settings that were chosen; the name and the threat have columns of their own."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            if key != "threat":
                yield f"{key} {value.get('name', '')} ({', '.join(_words(value))})"
        elif value is not None and value is not False and key != "name":
            text = f"{value:g}" if isinstance(value, float) else str(value)[:12] if key == "weights" else str(value)
            yield f"{key} {text}"


def _clean(records: Records) -> Share:
    return Share.of(records.correct)


def _under(name: str, eps: float) -> Measure:
    return lambda records: against(records, name, eps) if name in records.attacks else None


def _unanswered(study: Study) -> Iterator[str]:
    """How often networks give no answer, and what that counts as."""
    yield from unanswered({run.label: run.records for run in study.runs})


def _randomized(study: Study) -> Iterator[str]:
    """Mean accuracy over draws and that of the worst draw, for models that draw random numbers."""
    for run in study.runs:
        clean, attacks = run.records.facts.get("clean", {}).get("draws"), run.records.attacks
        if clean is None:
            continue
        shown = {"clean": Draws(**clean)} | {name: a.draws for name, a in attacks.items() if a.draws is not None}
        each = [f"{name} {percent(d.mean)} % (worst draw {percent(d.worst)} %)" for name, d in shown.items()]
        yield (
            f"{run.label} is randomized. Its mean accuracy over {shown['clean'].number} draws: {', '.join(each)}. "
            "The tables count a sample as robust only if every draw classifies it correctly."
        )


def _outside(study: Study) -> Iterator[str]:
    for name in study.attacks():
        runs = [run for run in study.runs if name in run.records.attacks and run.records.attacks[name].outside]
        counts = [f"{run.records.attacks[name].outside} of {len(run.records)} for {run.label}" for run in runs]
        if counts:
            yield f"{name} returned points outside the threat, which count as failed: {listed(counts)}."


def _not_attacked(study: Study) -> Iterator[str]:
    for name in study.attacks():
        runs = [run.label for runs in study.attacked().values() for run in runs if name not in run.records.attacks]
        if runs:
            yield f"{name} was not run against {listed(runs)}, so their worst case is over fewer attacks."
    if study.eps is not None and (runs := [run.label for run in study.unmeasured()]):
        where = f"{study.norm} eps {eps_text(study.eps)}"
        yield f"No attack was run at {where} against {listed(runs)}, so the worst case is an upper bound."


def _short(study: Study) -> Iterator[str]:
    """Warn of published and own settings whose steps are too short; the default step size is long enough."""
    short: dict[tuple[int, float, float], list[str]] = {}
    for name, attack in study.attacks().items():
        settings = attack.settings.get("attack", attack.settings)  # of the inner attack, if it wraps one
        steps, step = settings.get("steps"), settings.get("step")
        if steps is None or step is None or "at" in attack.settings or attack.norm == "l0":
            continue
        needed = 2 * attack.eps
        if steps * step < needed * (1 - 1e-9):
            short.setdefault((steps, step, needed), []).append(name)
    for (steps, step, needed), which in short.items():
        takes, it = ("takes", "it") if len(which) == 1 else ("take", "they")
        yield (
            f"{listed(which)} {takes} {steps} steps of {step:.4g}, which cannot cross the ball (2 eps = {needed:.4g}), "
            f"so {it} may miss adversarial examples; use more or larger steps, or leave out the step size."
        )


def _mixed(study: Study) -> Iterator[str]:
    """Attacks that have one name but other settings in some runs, as runs of several recipes may have."""
    for name in study.attacks():
        settings: dict[str, list[str]] = {}
        for run in study.runs:
            if name in run.records.attacks:
                given = run.records.attacks[name].settings
                text = json.dumps({key: value for key, value in given.items() if key != "weights"}, sort_keys=True)
                settings.setdefault(text, []).append(run.title)
        if len(settings) > 1:
            groups = "; ".join(listed(list(dict.fromkeys(titles))) for titles in settings.values())
            yield f"{name} has other settings in some runs, so its columns cannot be compared: {groups}."


def _left_out(study: Study) -> Iterator[str]:
    yield from (run.left_out for run in study.runs if run.left_out)


def verdicts(study: Study) -> list[str]:
    """Which differences from the most robust model are significant, and what the tests are about."""
    cells = robust_accuracy(study)
    if len(cells) < 2:
        return []
    pairs, refusal = compared(study)
    if refusal:
        return [f"No paired test: {refusal}"]
    best, *others = sorted(cells, key=lambda title: -cells[title].mean)
    found: dict[str, list[str]] = {}
    for other in others:
        found.setdefault(_verdict(best, other, pairs), []).append(other)
    return [*(f"{best} {verdict.format(listed(names))}." for verdict, names in found.items()), _caution(study)]


def _verdict(best: str, other: str, pairs: Sequence[Comparison]) -> str:
    leads = {c.lead if c.first == best else -c.lead for c in pairs if {c.first, c.second} == {best, other}}
    if not leads:
        return "shares no seed with {}, so no paired test was made"
    if leads == {1}:
        return "is significantly more robust than {} on the same samples (exact McNemar test, 5 % level after Holm)"
    if leads == {0}:
        return "does not differ significantly from {}"
    return "differs significantly from {} at some seeds only"


def _caution(study: Study) -> str:
    scope = "The tests are about these trained models on these samples"
    if any(len(runs) == 1 for runs in study.attacked().values()):
        return f"{scope}; one seed does not show how much a retrained model would differ."
    return f"{scope}; the deviation over seeds shows how much a retrained model may differ."
