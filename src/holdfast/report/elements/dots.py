"""Dot charts of shares with their intervals: the figure of the first screen."""

from collections.abc import Mapping, Sequence

from holdfast.report.elements.figures import Plot, Trace, colors, error_bars, figure, literal, scatter
from holdfast.report.elements.format import attack_text, eps_text
from holdfast.report.elements.table import Cell
from holdfast.report.study import Study, analysis_of, by_name
from holdfast.report.summary import against, clean_accuracy, proved, robust_accuracy


def methods_plot(study: Study) -> Plot | None:
    """Clean and robust accuracy of each model, the most robust first."""
    clean = clean_accuracy(study)
    robust = {title: cell for title, cell in robust_accuracy(study).items() if cell.spread}
    alt = "Dot chart of accuracy without attack and under all attacks for " + ", ".join(robust)
    caption = (
        "Filled: correct under every attack. Hollow: correct without attack. Lines span the 95 % intervals. Good is a "
        "filled dot far to the right, near its hollow one."
    )
    traces = _pairs({"no attack": clean, "all attacks": robust}, colors(study.titles))
    return _dot_plot("Accuracy without and under attack", alt, traces, caption) if robust else None


def proved_plot(study: Study) -> Plot | None:
    """Correct predictions of the first norm and group, and those that are proved at the middle radius."""
    if not study.certified() or not study.radii:
        return None
    (group, certificate), runs = next(iter(study.certified().items()))
    radius, groups = middle(study.radii), by_name(runs)
    clean, kept = ({name: proved(same, certificate, r) for name, same in groups.items()} for r in (0.0, radius))
    where = f"{certificate.partition(':')[0]} radius {eps_text(radius)}" + f", {group}" * bool(group)
    alt = f"Dot chart of correct and of proved predictions within {where} for " + ", ".join(groups)
    caption = (
        f"Filled: correct, and proved to stay so within {where}. Hollow: correct. Lines span the 95 % intervals. Good "
        "is a filled dot far to the right."
    )
    known = {name: cell for name, cell in kept.items() if cell.spread}
    traces = _pairs({"correct": clean, "proved": known}, colors(groups))
    return _dot_plot(f"Correct and proved predictions, {where}", alt, traces, caption) if known else None


def home_plot(study: Study) -> Plot:
    """The samples whose features are nearest to the mean of their true class, before and after the attack."""
    groups = study.analyzed()
    before, after = (
        {title: Cell(tuple(analysis_of(run).drift.home[at] for run in runs)) for title, runs in groups.items()}
        for at in (0, -1)
    )
    alt = "Dot chart of the samples nearest to the mean of their true class for " + ", ".join(groups)
    caption = (
        "Filled: after the attack. Hollow: before it. Lines span the 95 % intervals. Good is a filled dot far to the "
        "right, near its hollow one."
    )
    traces = _pairs({"before": before, "after": after}, colors(study.titles))
    return _dot_plot("Features nearest to the true class mean", alt, traces, caption, "nearest to the true class (%)")


def middle(radii: Sequence[float]) -> float:
    """The radius in the middle of those that are tabulated."""
    return sorted(radii)[len(radii) // 2]


def _pairs(cells: Mapping[str, Mapping[str, Cell]], looks: Mapping[str, str]) -> list[Trace]:
    """Hollow dots of the first kind of cells and filled dots of the last, which also gives the order, best first."""
    *_, last = cells.values()
    ranked = sorted(last, key=lambda name: -last[name].mean)
    chosen = [looks[name] for name in ranked]
    return [
        _dots(kind, {name: found[name] for name in ranked}, chosen, symbol)
        for (kind, found), symbol in zip(cells.items(), ("circle-open", "circle"), strict=True)
    ]


def attacks_plot(study: Study) -> Plot | None:
    """Accuracy of one model without attack, under each attack, and under all of them."""
    ((title, runs),) = study.attacked().items()
    eps, color = study.eps or 0.0, colors(study.titles)[title]
    cells = {"no attack": clean_accuracy(study)[title]}
    for name in study.stated_attacks():
        known = tuple(against(run.records, name, eps) for run in runs if name in run.records.attacks)
        cells[attack_text(name)] = Cell(known)
    cells["all attacks"] = robust_accuracy(study)[title]
    cells = {name: cell for name, cell in cells.items() if cell.spread}
    alt = f"Dot chart of the accuracy of {title} without attack, under each attack and under all of them"
    caption = (
        "Samples that stay correct under each attack, and under all of them. Lines span the 95 % intervals. Good is "
        "when no attack moves the dot far from the accuracy without attack."
    )
    traces = [_dots("accuracy", cells, [color] * len(cells), "circle")]
    return _dot_plot(f"Accuracy of {title} under each attack", alt, traces, caption) if len(cells) > 1 else None


def _dots(name: str, cells: dict[str, Cell], looks: Sequence[str], symbol: str) -> Trace:
    bars = error_bars(list(cells.values()))
    dots = scatter(name, [100 * cell.mean for cell in cells.values()], [], "markers")
    return dots | {
        "y": [literal(title) for title in cells],
        "error_x": bars | {"color": "#7a8794"},
        "marker": {"color": list(looks), "symbol": symbol, "size": 12, "line": {"width": 2, "color": list(looks)}},
        "hovertemplate": "%{y}, %{fullData.name}: %{x:.1f} %<extra></extra>",
    }


def _dot_plot(title: str, alt: str, traces: list[Trace], caption: str, x: str = "correct (%)") -> Plot:
    rows = len(traces[0]["y"])
    layout = {
        "xaxis": {"title": {"text": x}, "range": [-2, 102]},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "showlegend": False,
        "height": 90 + 36 * rows,
        "margin": {"l": 24, "r": 16, "t": 8, "b": 44},
    }
    return Plot(title, alt, figure(traces, layout), wide=True, caption=caption)
