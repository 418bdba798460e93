"""The sentences, tables and page of a sweep show every trial and escape names and values."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from test_page import HOSTILE, Page

from holdfast.report.page import render
from holdfast.report.sweep import (
    DONE,
    FAILED,
    RUNNING,
    Axis,
    Sweep,
    Trial,
    conclusions,
    csv_text,
    markdown,
    sweep_page,
    sweep_plots,
    text_sweep,
)
from holdfast.statistics import Share


def made(number: int, held: int, **values: object) -> Trial:
    robust, clean = Share(held, 50), Share(45, 50)
    return Trial(number=number, state=DONE, values=values, robust=robust, clean=clean, epoch=2, seconds=1.25)


@pytest.fixture
def sweep() -> Sweep:
    return Sweep(
        name="tiny",
        title="Tiny",
        method="TRADES",
        seed=0,
        judge="pgd (linf eps 0.2)",
        sampler="tpe",
        axes=[Axis(key="beta", values="0.5..20:log", log=True), Axis(key="form", values="[a, b]", listed=("a", "b"))],
        trials=[
            made(0, 20, beta=1.0, form="a"),
            made(1, 31, beta=6.123456789, form="b"),
            Trial(number=2, state=FAILED, values={"beta": 20.0, "form": "a"}, reason="the loss is nan"),
            made(3, 31, beta=5.0, form="a"),
            Trial(number=4, state=RUNNING, values={"beta": 2.0}),
        ],
        asked=6,
        recipe="title = 1",
        command="holdfast train tiny --set beta=6.123456789",
    )


def hostile(sweep: Sweep) -> Sweep:
    trial = replace(made(0, 20), values={HOSTILE: HOSTILE})
    failed = Trial(number=1, state=FAILED, values={HOSTILE: HOSTILE}, reason=HOSTILE)
    texts = dict.fromkeys(("name", "title", "method", "judge", "sampler", "recipe", "command"), HOSTILE)
    axes = [Axis(key=HOSTILE, values=HOSTILE, listed=(HOSTILE,))]
    return replace(sweep, **texts, axes=axes, trials=[trial, failed], versions={HOSTILE: HOSTILE})


def test_trials_are_ranked_and_the_earliest_of_equals_is_best(sweep: Sweep) -> None:
    assert sweep.best is sweep.trials[1]
    assert [trial.number for trial in sweep.ranked] == [1, 3, 0, 2, 4]
    assert (sweep.ended, sweep.running) == (4, 1)
    assert replace(sweep, trials=sweep.trials[2:3]).best is None


def test_sentences_have_the_interval_the_number_and_the_caution(sweep: Sweep) -> None:
    best = Share(31, 50)
    sentences = " ".join(conclusions(sweep))
    assert f"95 % interval {100 * best.low:.1f} to {100 * best.high:.1f}" in sentences
    assert (
        "Best of 3: trial 1 (beta 6.123, form b) has a robust accuracy of 62.0 % on 50 validation samples" in sentences
    )
    assert "looks better than it is" in sentences
    assert "1 of 5 trials failed." in sentences
    assert "1 of 5 trials are still running." in sentences


def test_tables_have_every_trial(sweep: Sweep) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(sweep))))
    assert [int(row["trial"]) for row in rows] == [0, 1, 2, 3, 4]
    assert float(rows[1]["beta"]) == 6.123456789
    assert float(rows[1]["robust_low"]) == Share(31, 50).low
    assert (rows[2]["robust"], rows[2]["reason"]) == ("", "the loss is nan")
    lines = [line for line in text_sweep(sweep).splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(sweep.trials)
    assert len({line.count("|") for line in lines}) == 1
    assert "failed: the loss is nan" in text_sweep(sweep)
    assert sweep.command in markdown(sweep)


def test_plots_show_every_finished_trial(sweep: Sweep) -> None:
    history, beta, form = sweep_plots(sweep)
    line, points = history.figure["data"]
    assert line["y"] == [40.0, 62.0, 62.0]
    assert points["x"] == [0, 1, 3]
    assert points["marker"]["symbol"] == ["circle", "star", "circle"]
    for plot in (history, beta, form):
        assert plot.figure["data"][-1]["y"] == [40.0, 62.0, 62.0]
    assert beta.figure["data"][0]["x"] == [1.0, 6.123456789, 5.0]
    assert beta.figure["layout"]["xaxis"]["type"] == "log"
    assert form.figure["layout"]["xaxis"]["categoryarray"] == ["a", "b"]
    assert sweep_plots(replace(sweep, trials=sweep.trials[2:3])) == []


def test_the_first_screen_has_data_samples_day_and_the_history(sweep: Sweep) -> None:
    page = sweep_page(replace(sweep, data="digits", date="2026-11-19"))
    assert page.facts["Data"] == "digits"
    assert page.facts["Validation samples"] == "50"
    assert page.facts["Measured"] == "2026-11-19"
    assert page.opening.question == "Which value of beta and form makes TRADES most robust?"
    assert [plot.title for plot in page.plots] == [plot.title for plot in sweep_plots(sweep)]
    assert page.opening.plot == sweep_plots(sweep)[0]


def test_the_page_shows_trials_plots_and_sentences(sweep: Sweep) -> None:
    page = Page(render(sweep_page(sweep)))
    assert page.count("tr") == 1 + len(sweep.trials) + 1 + len(sweep.axes)
    assert sum("data-plot" in attributes for _, attributes in page.elements) == 3
    for text in (sweep.command, "the loss is nan", "6.123", "0.5..20:log", *conclusions(sweep)):
        assert text in page.text


def test_names_and_values_are_escaped(sweep: Sweep) -> None:
    source, tame = render(sweep_page(hostile(sweep))), render(sweep_page(replace(sweep, axes=sweep.axes[:1])))
    page = Page(source)
    assert page.count("script") == Page(tame).count("script") == 3
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert HOSTILE in page.text
    found = re.search(r'id="data">(.*?)</script>', source, re.DOTALL)
    assert found
    for figure in json.loads(found[1])["figures"]:
        assert "<img" not in json.dumps([figure["data"], figure["layout"]])
    prose, _, _ = markdown(hostile(sweep)).partition("```sh\n")
    assert "<" not in prose
    assert "\u2028" not in prose
