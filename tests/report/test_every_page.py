"""Every kind of page in a browser: a study, runs side by side, a model of one's own, certificates, and a sweep."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.records.records import PER_ATTACK, Records
from holdfast.report.page import Page, write_page
from holdfast.report.study import Run, Study
from holdfast.report.study_page import study_page
from holdfast.report.sweep import DONE, Axis, Sweep, Trial, sweep_page
from holdfast.report.together import together
from holdfast.statistics import Share
from waiting import until


@pytest.fixture
def pages(study: Study, make_run: Any, make_study: Any) -> dict[str, Callable[[], Page]]:
    names = {"first": ("AT", "plain"), "second": ("AT", "TLA"), "a third run": ("AT", "TRADES + HE + triplet")}

    def side_by_side() -> Page:
        each = {key: make_study([make_run(name, 0, n=80) for name in given]) for key, given in names.items()}
        return study_page(together(each))

    return {
        "study": lambda: study_page(study),
        "side by side": side_by_side,
        "own model": lambda: study_page(own(make_run("My network", 0, n=80), make_study)),
        "certificates": lambda: study_page(certificates()),
        "sweep": lambda: sweep_page(sweep()),
    }


def own(run: Run, make_study: Any) -> Study:
    """What `holdfast evaluate --model` finds: nothing was trained, and names of attacks have settings."""
    facts = {key: value for key, value in run.records.facts.items() if key != "training"}
    names = {"PGD-40": "pgd:steps=40,restarts=5,loss=logit_difference", "FGSM": "fgsm"}
    facts["attacks"] = {name: run.records.facts["attacks"][old] for old, name in names.items()}
    columns = {"index": run.records.columns["index"], "y": run.records.columns["y"]}
    columns["label"] = run.records.columns["label"]
    for old, name in names.items():
        columns |= {f"{kind}:linf:{name}": run.records.columns[f"{kind}:linf:{old}"] for kind in PER_ATTACK}
    records = Records(columns, facts)
    return replace(make_study([replace(run, records=records, metrics=[])]), recipe="")


def certificates() -> Study:
    def run(name: str, group: str, seed: int) -> Run:
        rng, n = np.random.default_rng(seed), 60
        columns = {"index": np.arange(n), "y": np.arange(n) % 3, "label": np.arange(n) % 3}
        radius = rng.gamma(2, 0.3, n)
        columns |= {"radius:l2:neighbors": radius, "upper:l2:neighbors": 1.2 * radius}
        records = Records(columns, {"training": {"seconds": 1.0}, "certifier": {"seconds": 2.0}})
        return Run(name=name, method="plain", seed=seed, group=group, records=records)

    runs = [run(*key) for key in (("Euclidean", "K = 1", 0), ("ARML", "K = 1", 1), ("ARML", "K = 11", 2))]
    return Study(name="c", title="Metrics", description="", runs=runs, radii=(0.1, 0.2, 0.4, 0.8, 1.6), recipe="r")


def sweep() -> Sweep:
    values = [(0, 1.0, "a", 20), (1, 6.123456789, "b", 31), (2, 5.0, "a", 31)]
    trials = [
        Trial(
            number=number, state=DONE, values={"beta": beta, "form": form}, robust=Share(held, 50), clean=Share(45, 50)
        )
        for number, beta, form, held in values
    ]
    axes = [Axis(key="beta", values="0.5..20:log", log=True), Axis(key="form", values="[a, b]", listed=("a", "b"))]
    texts = {"name": "s", "title": "Tiny", "method": "TRADES", "judge": "pgd", "sampler": "tpe", "recipe": "r"}
    return Sweep(**texts, seed=0, axes=axes, trials=trials, asked=3)  # type: ignore[arg-type]


NAMES = ("study", "side by side", "own model", "certificates", "sweep")


@pytest.mark.parametrize("name", NAMES)
def test_it_fits_a_phone_and_a_screen_without_complaints(
    open_page: Any, pages: dict[str, Callable[[], Page]], name: str, tmp_path: Path
) -> None:
    write_page(tmp_path / "page.html", pages[name]())
    assert (tmp_path / "page.html").stat().st_size < 6_000_000
    page, complaints = open_page(tmp_path / "page.html", viewport={"width": 390, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        until(page, "(width) => document.documentElement.scrollWidth === width", width)
        assert page.evaluate(BEYOND, width) == []
    assert page.evaluate(HEADINGS) == []
    assert page.evaluate(NAMELESS) == []
    assert complaints == []
    page.close()


@pytest.mark.parametrize("name", ["study", "own model"])
def test_the_first_screen_has_what_the_answer_is_about(
    open_page: Any, pages: dict[str, Callable[[], Page]], name: str, tmp_path: Path
) -> None:
    write_page(tmp_path / "page.html", pages[name]())
    page, complaints = open_page(tmp_path / "page.html", viewport={"width": 1280, "height": 900})
    seen = page.evaluate(
        """() => ['h1', '.answer p', '.facts', '.opening .main-svg', '.changes li']
          .filter((one) => document.querySelector(one)?.getBoundingClientRect().top < window.innerHeight)"""
    )
    assert len(seen) == 5
    facts = page.locator(".facts").text_content()
    assert all(word in facts for word in ("Data", "Threat", "Samples"))
    assert complaints == []
    page.close()


def test_a_wide_table_scrolls_under_its_first_column(
    open_page: Any, pages: dict[str, Callable[[], Page]], tmp_path: Path
) -> None:
    write_page(tmp_path / "page.html", pages["side by side"]())
    page, complaints = open_page(tmp_path / "page.html", viewport={"width": 390, "height": 844})
    for place in ("#results .scroll", "#pairs .scroll"):
        table = page.locator(place).first
        assert table.evaluate("(one) => one.scrollWidth > one.clientWidth")
        head, last = table.locator("tbody th").first, table.locator("thead th").last
        before, hidden = head.bounding_box()["x"], last.bounding_box()["x"]
        assert hidden > 390
        table.focus()
        page.keyboard.press("End")  # by keyboard too
        table.evaluate("(one) => { one.scrollLeft = one.scrollWidth; }")
        assert head.bounding_box()["x"] == pytest.approx(before, abs=1)
        assert last.bounding_box()["x"] < 390
    captions = page.locator("#results caption span:visible")
    assert captions.count() == 1
    assert captions.first.bounding_box()["x"] + captions.first.bounding_box()["width"] <= 390
    assert page.evaluate("document.documentElement.scrollLeft") == 0
    assert complaints == []
    page.close()


# what reaches beyond the window, other than what scrolls inside its card
BEYOND = """(width) => [...document.querySelectorAll('main *, header *, footer *')]
  .filter((one) => !one.closest('.scroll, .strip, pre, svg') && one.getBoundingClientRect().right > width + 1)
  .map((one) => one.className || one.tagName)"""
# headings that skip a level, and any h1 after the first
HEADINGS = """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((one) => [one, Number(one.tagName[1])])
  .filter(([, level], i, all) => level > (i ? all[i - 1][1] + 1 : 1) || (level === 1) !== (i === 0))
  .map(([one]) => one.textContent)"""
# images without a text alternative and controls without a name
NAMELESS = """() => [...document.querySelectorAll('img, [role=img], canvas, button, select, input')]
  .filter((one) => !(one.alt || one.ariaLabel || one.textContent || one.labels?.[0]?.textContent || '').trim())
  .map((one) => one.outerHTML)"""
