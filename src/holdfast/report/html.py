"""The page: one HTML file that needs no network, shows every number with its uncertainty and escapes every name."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from holdfast.records.atomic import write_text
from holdfast.report import text
from holdfast.report.figures import Plot, accuracy_plot, cost_plots, marks, mean_spend, stage_marks, training_plots
from holdfast.report.images import strips
from holdfast.report.study import Study
from holdfast.report.table import WORST, eps_text, main_table, other_table


def write_page(path: Path, study: Study) -> None:
    """Write the page of a study as one self-contained file that opens from disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(study))


def render(study: Study) -> str:
    """The page of a study as HTML."""
    return filled("page.html", _numbers(study) | _figures(study))


def filled(template: str, values: dict[str, Any]) -> str:
    """A page from its template, with style and scripts inside; every value is escaped."""
    loader = FunctionLoader(_resource)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"eps": eps_text, "percent": text.percent, "p": text.p_text, "seeds": text.seeds_text}
    style = {"style": Markup(_resource("page.css"))}
    return environment.get_template(template).render(values | style | _scripts())


def _numbers(study: Study) -> dict[str, Any]:
    pairs, refusal = text.comparisons(study)
    return {
        "study": study,
        "headline": text.headline(study),
        "warnings": text.warnings(study),
        "table": main_table(study),
        "worst": WORST,
        "other": other_table(study),
        "pairs": pairs,
        "refusal": refusal,
        "attacks": study.attacks(),
        "spends": _spends(study),
    }


def _figures(study: Study) -> dict[str, Any]:
    groups = {
        "accuracy": [accuracy_plot(study, norm) for norm in study.norms()],
        "training": training_plots(study),
        "cost": cost_plots(study),
    }
    plots = [plot for group in groups.values() for plot in group]
    numbers = count()
    return {
        "plots": {name: [(next(numbers), plot) for plot in group] for name, group in groups.items()},
        "figures": embedded([_drawn(study, plot) for plot in plots]),
        "marks": marks(list(study.by_name())),
        "stages": stage_marks(study),
        "strips": strips(study),
    }


def _drawn(study: Study, plot: Plot) -> dict[str, Any]:
    return plot.figure | {"filename": f"{study.name} {plot.title}"}


def _spends(study: Study) -> list[tuple[str, str, Any]]:
    return [
        (name, stage, spend)
        for name, runs in study.by_name().items()
        for stage in stage_marks(study)
        if (spend := mean_spend(runs, stage)) is not None
    ]


def _scripts() -> dict[str, Any]:
    plotly, page = script(get_plotlyjs()), script(_resource("page.js"))
    return {"plotly": plotly, "script": page, "hashes": Markup(" ").join(_hash(source) for source in (plotly, page))}


def embedded(value: object) -> Markup:
    """JSON that can stand inside a script element whatever names it holds: nothing in it can end the element."""
    data = json.dumps(value, allow_nan=False)
    return Markup(data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def script(source: str) -> Markup:
    """Our own code or plotly's as the content of a script element."""
    return Markup(source.replace("</script", "<\\/script"))


def _hash(source: str) -> Markup:
    # the page allows exactly these scripts and no address at all, so a name that slipped through could still do nothing
    return Markup(f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'")


def _resource(name: str) -> str:
    return files("holdfast.report").joinpath(name).read_text("utf-8")
