"""The page of an analysis: numbers are those of the analyses, and it works in a browser, also by keyboard."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.report.elements.format import percent, points_text
from holdfast.report.elements.table import Cell
from holdfast.report.explorer import explorer
from holdfast.report.page import render
from holdfast.report.ratios import common_classes, difference
from holdfast.report.sections import detection, drift, features, heads, landscapes, retrieval, sections
from holdfast.report.study import Run, Study
from holdfast.report.study_page import study_page
from holdfast.report.together import together
from holdfast.rng import Rng
from waiting import until

NAMES = ("<b>one", "two")


def images(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % 3
    x = 0.6 * Rng(seed).uniform(torch.empty(n, 1, 6, 6))
    x[torch.arange(n), 0, y] += 0.3
    return x, y


GIVEN: dict[str, Any] = {"gallery": images(90, 0), "threat": "linf:0.2", "steps": 4, "k": 5, "progress": False}


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer, (x, y) = torch.optim.Adam(net.parameters(), 1e-2), images(90, 0)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


@pytest.fixture(scope="module")
def result() -> holdfast.Analyzed:
    models = {name: network(seed) for seed, name in enumerate(NAMES)}
    return holdfast.analyze(models, *images(48, 1), **GIVEN)


@pytest.fixture(scope="module")
def inside(result: holdfast.Analyzed) -> Study:
    runs = [
        Run(name=name, method="own", seed=0, records=one.samples, analysis=one) for name, one in result.models.items()
    ]
    return Study(name="inside", title="Two networks", description="", runs=runs, recipe="", threat="linf eps 0.2")


def cells(table: Any, column: int) -> list[Any]:
    return [row.cells[column] for row in table.rows]


def shares(found: list[Any]) -> list[Any]:
    assert all(isinstance(cell, Cell) for cell in found)
    return [cell.shares[0] for cell in found]


def test_tables_hold_the_numbers_of_the_analyses(inside: Study, result: holdfast.Analyzed) -> None:
    each = [result[name] for name in NAMES]
    found = features.section(inside)
    assert found is not None
    common = common_classes(inside.runs, 0)
    assert shares(cells(found.tables[0], 0)) == [one.under[0].accuracy for one in each]
    assert shares(cells(found.tables[0], 1)) == [one.under[0].separation.r.over(common) for one in each]
    assert shares(cells(found.tables[0], 2)) == [one.under[0].separation.r_prime.average for one in each]
    assert shares(cells(found.tables[0], 3)) == [one.under[0].separation.within for one in each]
    assert shares(cells(found.tables[1], 0)) == [one.neighbors.accuracy[0] for one in each]
    assert shares(cells(found.tables[1], 1)) == [one.under[0].neighbors.accuracy[0] for one in each]
    detected = detection.section(inside)
    assert detected is not None
    assert shares(cells(detected.tables[0], 0)) == [one.under[0].detection.auc for one in each]
    assert shares(cells(detected.tables[0], 5)) == [one.under[0].detection_aware.at[0.05] for one in each]
    moved = drift.section(inside)
    assert moved is not None
    assert shares(cells(moved.tables[0], 5)) == [one.drift.home[-1] for one in each]
    around = landscapes.section(inside)
    assert around is not None
    assert shares(cells(around.tables[0], 1)) == [one.landscape.rise for one in each if one.landscape]
    last = heads.section(inside)
    assert last is not None
    assert shares(cells(last.tables[0], 1)) == [one.head.angles for one in each if one.head]


def test_the_first_screen_answers_in_plain_sentences(inside: Study, result: holdfast.Analyzed) -> None:
    moved, detected = study_page(inside).opening.answer
    for at in (0, -1):
        shares = sorted(percent(1 - result[name].drift.home[at].value) for name in NAMES)
        assert all(f"{share} %" in moved for share in shares)
    assert moved.startswith("After PGD-4 at linf 0.2 the features of ")
    found = [result[name].under[0] for name in NAMES]
    areas = [one.auc.value for under in found for one in (under.detection, under.detection_aware)]
    assert all(f"{area:.2f}" in detected for area in areas)
    widths = [share.high - share.low for share in (result[name].drift.home[-1] for name in NAMES)]
    assert any(points_text(max(widths) / 2) in change for change in study_page(inside).opening.changes)


def test_a_page_from_python_has_a_date_and_neither_recipe_nor_seeds(file: Path) -> None:
    source = file.read_text("utf-8")
    assert re.search(r"<dt>Measured</dt><dd>\d{4}-\d\d-\d\d</dd>", source)
    assert 'id="recipe"' not in source
    assert "Seeds" not in source.partition('id="data"')[0]


def test_folded_tables_say_where_classes_move_and_how_gaps_are_distributed(
    inside: Study, result: holdfast.Analyzed
) -> None:
    moved, around = drift.section(inside), landscapes.section(inside)
    assert moved is not None
    assert around is not None
    one = result[NAMES[0]]
    ends = one.drift.toward()
    rows = [row.cells for row in moved.tables[1].rows if row.name == NAMES[0]]
    assert [row[:3] for row in rows] == [(str(k), "16", percent(numbers.get(k, 0) / 16)) for k, numbers in ends.items()]
    assert all(row[3] == f"class {next(j for j in ends[int(row[0])] if j != int(row[0]))}" for row in rows)
    last = [row.cells for row in around.tables[1].rows if row.name == NAMES[0]][-1]
    gaps = one.linearity
    assert last[2:] == tuple(
        f"{number:.3f}"
        for number in (gaps.mean[-1][-1].value, gaps.median[-1, -1], gaps.upper[-1, -1], gaps.largest[-1, -1])
    )


@pytest.mark.parametrize(("change", "seed", "what"), [({"k": 3}, 1, "settings"), ({}, 2, "samples"), ({}, 1, "")])
def test_analyses_stand_side_by_side_if_their_settings_and_samples_agree(
    inside: Study, change: dict[str, Any], seed: int, what: str
) -> None:
    other = holdfast.analyze({"three": network(2)}, *images(48, seed), **GIVEN | change)["three"]
    run = Run(name="three", method="own", seed=0, records=other.samples, analysis=other)
    both = together({"a": inside, "b": replace(inside, runs=[run])})
    last = both.runs[-1]
    assert (last.analysis is None) == bool(what)
    if what:
        expected = f"The analysis of three (seed 0) is of other {what} than that of <b>one (seed 0)"
        assert last.left_out.startswith(expected)
        assert any(warning.startswith(expected) for section in sections(both) for warning in section.warnings)
    assert "three" in render(study_page(both))


def test_differences_are_paired(inside: Study, result: holdfast.Analyzed) -> None:
    first, second = (result[name].under[0].separation.r_prime for name in NAMES)
    found = difference(*inside.runs, 0, "r_prime")
    assert found == first.minus(second)
    section = features.section(inside)
    assert section is not None
    assert str(found) in section.tables[2].rows[0].cells


def test_galleries_mark_neighbors_of_other_classes(inside: Study, result: holdfast.Analyzed) -> None:
    section = retrieval.section(inside)
    assert section is not None
    arrays, y = result[NAMES[0]].samples.arrays, result[NAMES[0]].y
    rows = list(section.images[0].rows.values())
    for at, kind in ((0, "natural"), (1, result[NAMES[0]].under[0].name)):
        labels = arrays[f"retrieved_y:place:{kind}"][0][:8]
        assert [picture.wrong for picture in rows[at][1:]] == (labels != y[0]).tolist()
    assert len(rows) == 2 * 4


def test_the_map_has_the_places_and_labels_of_every_step(inside: Study, result: holdfast.Analyzed) -> None:
    found = explorer({run.title: run for run in inside.runs})
    assert found is not None
    one, drawn = result[NAMES[0]], found.data["models"][0]
    assert one.places is not None
    assert drawn["steps"] == [0, 1, 2, 3, 4]
    assert np.allclose(np.array([drawn["x"], drawn["y"]]).transpose(2, 1, 0), one.places, atol=0.006)
    assert np.array_equal(np.array(drawn["labels"]).T, one.followed.arrays["label:path"])
    assert drawn["name"] == "&lt;b&gt;one"
    assert found.data["clean"]["width"] == 6


def test_the_source_is_one_file_that_escapes_names(inside: Study) -> None:
    source = render(study_page(inside))
    assert "<b>one" not in source
    data = re.search(r'id="data">(.*?)</script>', source, re.DOTALL)
    assert data
    assert [len(one["models"]) for one in json.loads(data[1])["explorers"]] == [2]
    headings = re.findall(r"<(h[1-6])", source)
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    assert set(headings) == {"h1", "h2"}
    assert not re.search(r"<(figure|canvas|img)(?![^>]*>)", source)


@pytest.fixture(scope="module")
def file(result: holdfast.Analyzed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.page(tmp_path_factory.mktemp("page") / "page.html")


def positions(page: Any) -> Any:
    return page.evaluate("document.querySelector('[data-part=chart]').data.slice(2).map(t => [t.x, t.y])")


def test_the_slider_moves_points_and_the_pointer_shows_images(open_page: Any, file: Path) -> None:
    page, complaints = open_page(file, viewport={"width": 1280, "height": 900})
    slider, sample = page.locator("[data-part=step]"), page.locator("[data-part=sample]")
    last = positions(page)
    slider.fill("0")
    assert positions(page) != last
    assert "0 of 4 steps of PGD-4 at linf 0.2" in page.locator("[data-part=reached]").text_content()
    slider.press("ArrowRight")  # by keyboard too
    assert "1 of 4 steps" in slider.get_attribute("aria-valuetext")
    chart = page.locator("[data-part=chart]")
    chart.scroll_into_view_if_needed()
    before, box = sample.text_content(), chart.locator(".nsewdrag").first.bounding_box()
    point = page.evaluate(
        """(before) => {
          const chart = document.querySelector('[data-part=chart]'), layout = chart._fullLayout;
          const trace = chart.data.slice(2).find((t) => !before.includes(t.name) && t.x.length);
          return [layout.xaxis.d2p(trace.x[0]), layout.yaxis.d2p(trace.y[0])];
        }""",
        before,
    )
    page.mouse.move(box["x"] + point[0], box["y"] + point[1])
    until(page, "(before) => document.querySelector('[data-part=sample]').textContent !== before", before)
    ink = "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v)"
    assert page.locator("[data-part=clean] canvas").evaluate(ink)
    assert page.locator("[data-part=moved] canvas").evaluate(ink)
    page.locator("[data-part=next]").press("Enter")
    assert re.fullmatch(r"Sample \d+, class \d", sample.text_content())
    first = positions(page)
    page.locator("[data-part=model]").select_option("1")
    assert positions(page) != first
    assert "two says" in page.locator("[data-part=labels]").text_content()
    assert complaints == []
    page.close()


def test_tables_are_copied_and_figures_saved(open_page: Any, file: Path, result: holdfast.Analyzed) -> None:
    page, complaints = open_page(
        file, viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    tools = page.locator("#features .tabled").first
    tools.locator("[data-copy=csv]").click()
    rows = list(csv.reader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    r_prime = result[NAMES[0]].under[0].separation.r_prime.average
    assert rows[0][0] == "Model"
    assert rows[1][0].startswith("<b>one")
    assert rows[1][3] == f"{r_prime.value:.3f} [{r_prime.low:.3f}, {r_prime.high:.3f}]"
    tools.locator("[data-copy=latex]").press("Enter")
    latex = page.evaluate("navigator.clipboard.readText()")
    assert latex.startswith("\\begin{tabular}{lrrrrr}\n\\toprule\nModel & ")
    assert "$<$b$>$one" in latex
    assert f"{r_prime.value:.3f} [{r_prime.low:.3f}, {r_prime.high:.3f}]" in latex
    assert latex.count("\\\\\n") == 3
    for button in (page.locator("#detection [data-save]").first, page.locator(".explorer [data-save]")):
        with page.expect_download() as download:
            button.click()
        assert download.value.suggested_filename.endswith(".svg")
        assert "<svg" in Path(download.value.path()).read_text("utf-8")
    assert complaints == []
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overflows_and_text_stands_out(open_page: Any, file: Path, width: int, scheme: str) -> None:
    page, complaints = open_page(file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    beyond = page.evaluate(
        """(width) => [...document.querySelectorAll('main *, header *, footer *')]
          .filter((one) => !one.closest('.scroll, .strip, pre, svg') && one.getBoundingClientRect().right > width + 1)
          .map((one) => one.className || one.tagName)""",
        width,
    )
    assert beyond == []
    assert page.evaluate(CONTRAST) == []
    assert complaints == []
    page.close()


# texts whose contrast with the background behind them is below 4.5:1
CONTRAST = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const kinds = 'h1, h2, p, th, td, small, a, dt, dd, li, summary, button, figcaption, label';
  const texts = [...document.querySelectorAll(kinds)];
  return texts.filter((one) => one.offsetParent && !one.disabled).filter((one) => {
    const [high, low] = [light(channels(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05) < 4.5;
  }).map((one) => `${one.tagName} ${one.textContent.slice(0, 40)}`);
}"""


def test_every_control_is_reached_by_keyboard_and_has_a_name(open_page: Any, file: Path) -> None:
    page, complaints = open_page(file, viewport={"width": 1280, "height": 900})
    nameless = """() => [...document.querySelectorAll('button, select, input, a, summary, [tabindex]')]
      .filter((one) => {
        const name = one.ariaLabel || one.textContent || one.labels?.[0]?.textContent || '';
        return one.tabIndex < 0 || !name.trim();
      }).map((one) => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert complaints == []
    page.close()


def test_paper_shows_figures_and_tables_without_controls(open_page: Any, file: Path) -> None:
    page, complaints = open_page(file, viewport={"width": 1280, "height": 900})
    page.emulate_media(media="print")
    assert page.locator("button:visible").count() == 0
    assert page.locator("nav:visible").count() == 0
    assert page.locator("[data-plot] .main-svg").first.is_visible()
    page.set_viewport_size({"width": 794, "height": 1123})  # A4
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    until(
        page,
        """() => [...document.querySelectorAll('.js-plotly-plot')]
          .every((one) => one.getBoundingClientRect().height >= one.querySelector('.main-svg').clientHeight)""",
    )
    until(page, "() => document.documentElement.scrollWidth === 794")
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert complaints == []
    page.close()
