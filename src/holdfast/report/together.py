"""Several studies side by side, as one study."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.report.elements.format import listed
from holdfast.report.ratios import same_samples
from holdfast.report.study import Run, Study, analysis_of


def together(studies: Mapping[str, Study]) -> Study:
    """The runs of several studies of one threat as one study; ``studies`` are named as their rows shall be told apart.

    Names that several studies have are preceded by that of their study. Paired tests are made where the samples agree.
    Analyses are shown that have the settings and samples of the first.
    """
    first = next(iter(studies.values()))
    for name, other in studies.items():
        if (other.norm, other.eps) != (first.norm, first.eps):
            raise ValueError(
                f"{next(iter(studies))} is attacked at {first.threat or 'no threat'} and {name} at "
                f"{other.threat or 'no threat'}, so their accuracies cannot stand side by side; name runs of one threat"
            )
    every = [run.name for study in studies.values() for run in {run.name: run for run in study.runs}.values()]
    shared = {name for name in every if every.count(name) > 1}
    named = {name: _named(study, name, shared) for name, study in studies.items()}
    return replace(
        first,
        name="-".join(studies),
        title=f"{listed(list(studies))} side by side",
        description=f"{listed([study.title for study in studies.values()])}.",
        runs=_beside_the_first([run for study in named.values() for run in study.runs]),
        recipe="\n".join(f"# {name}\n\n{study.recipe}" for name, study in studies.items()),
        radii=sorted({radius for study in studies.values() for radius in study.radii}),
        terms=_terms([study.terms for study in named.values()]),
        date=max(study.date for study in studies.values()),
    )


def _beside_the_first(runs: Sequence[Run]) -> list[Run]:
    """The runs, but without analyses that cannot be shown beside that of the first."""
    first = next((run for run in runs if run.analysis is not None), None)
    return [run if first is None else _beside(first, run) for run in runs]


def _beside(first: Run, run: Run) -> Run:
    if run.analysis is None:
        return run
    known, other = analysis_of(first), run.analysis
    asked = [{key: given for key, given in one.facts.items() if key != "threshold"} for one in (known, other)]
    what = "settings" if asked[0] != asked[1] else "" if same_samples(known, other) else "samples"
    if not what:
        return run
    words = f"The analysis of {run.label} is of other {what} than that of {first.label}, so it is not shown."
    return replace(run, analysis=None, left_out=words)


def _named(study: Study, name: str, shared: set[str]) -> Study:
    """The study with its name before those that other studies have too."""

    def renamed(given: str) -> str:
        return f"{name}: {given}" if given in shared else given

    runs = [replace(run, name=renamed(run.name)) for run in study.runs]
    terms = {", ".join(map(renamed, names.split(", "))): text for names, text in study.terms.items()}
    return replace(study, runs=runs, terms=terms)


def _terms(each: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What names stand for; names of one kind share a line."""
    names: dict[str, list[str]] = {}
    for terms in each:
        for of, text in terms.items():
            names.setdefault(text, []).append(of)
    return {", ".join(of): text for text, of in names.items()}
