"""What training, prediction, attacks and certificates cost: seconds, forward and backward passes."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from holdfast.records.facts import Spend
from holdfast.records.records import column_name
from holdfast.report.elements.figures import Plot, Trace, colors, figure, literal
from holdfast.report.elements.format import attack_text, eps_text, percent
from holdfast.report.elements.table import UNKNOWN, listing
from holdfast.report.page import Section
from holdfast.report.study import Run, Study, by_title

ORDER = 70

_TITLES = {"seconds": "Seconds", "forwards": "Forward passes (samples)", "backwards": "Backward passes (samples)"}
_NOTE = "Means over seeds. Passes are counted in samples, so they depend on neither batch size nor machine; seconds do."


def section(study: Study) -> Section | None:
    """Stacked bars for each kind of cost, and a table with the numbers."""
    stages = stage_colors(study)
    if not set(stages) - {"clean"}:  # to predict clean samples costs next to nothing
        return None
    legend = {_name(study, stage): color for stage, color in stages.items()}
    titles = ("Method", "Stage", "Seconds", "Seconds per sample", "Forwards", "Backwards")
    table = listing(titles, _rows(study), "The numbers", words=["Stage"], folded=True)
    plots = cost_plots(study)
    sentences = [_NOTE, *_spared(study)]
    return Section(id="cost", title="Cost", sentences=sentences, legend=legend, plots=plots, tables=[table])


def stage_colors(study: Study) -> dict[str, str]:
    """The stages of all runs in the order they were run, with their colors."""
    return colors(stage for run in study.runs for stage in run.records.spend())


def _name(study: Study, stage: str) -> str:
    """The stage in words; an attack that is named after its eps says it as the other tables do."""
    attack = study.attacks().get(stage)
    bare = stage if attack is None else stage.removesuffix(f"@{attack.eps:g}")
    return attack_text(stage) if attack is None or bare == stage else f"{bare} at eps {eps_text(attack.eps)}"


def mean_spend(runs: Sequence[Run], stage: str) -> Spend | None:
    """The mean cost of a stage over the seeds that ran it."""
    found = [costs[stage] for run in runs if stage in (costs := run.records.spend())]
    if not found:
        return None
    seconds, forwards, backwards = (fmean(getattr(one, what) for one in found) for what in _TITLES)
    return Spend(seconds, round(forwards), round(backwards))


def cost_plots(study: Study) -> list[Plot]:
    """One figure for each kind of cost that occurs: a bar for each title, stacked by stage, means over seeds."""
    groups, plots = by_title(study.runs), []
    layout = {
        "barmode": "stack",
        "showlegend": False,
        "height": 120 + 34 * len(groups),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "xaxis": {"rangemode": "tozero"},
        "margin": {"l": 56, "r": 16, "t": 16, "b": 32},
    }
    for what, title in _TITLES.items():
        traces = [_bar(groups, _name(study, stage), stage, color, what) for stage, color in stage_colors(study).items()]
        alt = f"Stacked bar chart of {title.lower()} for each method; the table below has the numbers"
        if any(any(trace["x"]) for trace in traces):
            plots.append(Plot(title, alt, figure(traces, layout), caption="Shorter is cheaper."))
    return plots


def _bar(groups: Mapping[str, Sequence[Run]], name: str, stage: str, color: str, what: str) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": literal(name),
        "y": [literal(title) for title in groups],
        "x": [getattr(mean_spend(runs, stage) or Spend(), what) for runs in groups.values()],
        "marker": {"color": color},
        "hovertemplate": "%{y}: %{x:,.4~g}<extra>%{fullData.name}</extra>",
    }


def _rows(study: Study) -> Iterator[list[str]]:
    for title, runs in by_title(study.runs).items():
        samples = fmean(len(run.records) for run in runs)
        for stage in stage_colors(study):
            if cost := mean_spend(runs, stage):
                each = UNKNOWN if stage == "training" or not samples else f"{cost.seconds / samples:.4f}"
                numbers = [f"{cost.seconds:.1f}", each, f"{cost.forwards:,}", f"{cost.backwards:,}"]
                yield [title, _name(study, stage), *numbers]


def _spared(study: Study) -> Iterator[str]:
    """How many samples certificates spared each attack, and what the attack would have spent on them."""
    for title, runs in by_title(study.runs).items():
        for name, attack in runs[0].records.attacks.items():
            column = column_name("proved", attack.norm, name)
            spared = [run.records for run in runs if column in run.records.columns]
            if not spared:
                continue
            proved = sum(int(records.columns[column].sum()) for records in spared)
            attacked = sum(int((records.correct & ~records.columns[column]).sum()) for records in spared)
            cost = [records.attacks[name] for records in spared]
            passes = sum(one.forwards + one.backwards for one in cost) * proved / max(attacked, 1)
            saved = f": about {passes:,.0f} passes saved, at the mean cost of those that were" if attacked else ""
            share = proved / sum(map(len, spared))
            of = f"{title}: {percent(share)} % of the samples are proved at {attack_text(name)}"
            yield f"{of} and not attacked{saved}."
