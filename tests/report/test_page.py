"""The page is self-contained, escapes every name, shows every number, and works in a browser."""

import gzip
import json
import re
import sys
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

import holdfast.report.sections
from holdfast.report.elements.format import percent
from holdfast.report.elements.table import Cell
from holdfast.report.page import Section, embedded, render, write_page
from holdfast.report.sections import sections
from holdfast.report.sections.results import main_table
from holdfast.report.study_page import study_page

HOSTILE = '</script><script>window.broken=1</script><img src=x onerror="window.broken=1">&"\'{{ 7*7 }}\u2028'
ADDRESS = re.compile(r"https?:", re.IGNORECASE)


class Page(HTMLParser):
    """Elements with their attributes and text, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text += data
        elif self.inside[-1] == "style":
            self.style += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def render_study(study) -> str:
    return render(study_page(study))


@pytest.fixture(scope="module")
def source(study) -> str:
    return render_study(study)


@pytest.fixture(scope="module")
def hostile_study(make_run, make_study):
    run = make_run(HOSTILE, 0, n=30)
    bad = {"data": {"name": HOSTILE, "digest": HOSTILE}, "commit": HOSTILE, "weights": HOSTILE}
    bad |= {"versions": {HOSTILE: HOSTILE}}
    run = replace(run, method=HOSTILE, records=replace(run.records, facts=dict(run.records.facts) | bad))
    run = replace(run, metrics=[{"step": 1, "split": "train", HOSTILE: 1.0}])
    texts = dict.fromkeys(("name", "title", "description", "threat", "recipe"), HOSTILE)
    return replace(make_study([run]), **texts)


def test_the_page_needs_no_network(source: str) -> None:
    page = Page(source)
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert page.count("link") == page.count("iframe") == page.count("base") == 0
    assert "@import" not in page.style
    assert "url(" not in page.style
    assert not ADDRESS.search(source)


def test_plotly_is_embedded_once_and_only_hashed_scripts_may_run(source: str) -> None:
    (given,) = re.findall(r'<script type="text/plain" id="plotly">(.+)</script>', source)
    assert gzip.decompress(b64decode(given)).decode() == get_plotlyjs()
    (policy,) = [a for tag, a in Page(source).elements if tag == "meta" and "http-equiv" in a]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert re.fullmatch(
        r"default-src 'none'; script-src 'sha256-\S+' 'sha256-\S+'; style-src 'unsafe-inline'; img-src data: blob:; .*",
        policy["content"] or "",
    )


def test_every_number_of_the_table_is_on_the_page(source: str, study) -> None:
    text = " ".join(Page(source).text.split())
    for row in main_table(study).rows:
        for cell in (cell for cell in row.cells if isinstance(cell, Cell)):
            assert (
                f"{percent(cell.spread.mean)} ± {percent(cell.spread.std)} [{percent(cell.low)}, {percent(cell.high)}]"
                in text
            )
            for share in cell.shares:
                assert f"{percent(share.value)} [{percent(share.low)}, {percent(share.high)}]" in text


def test_tables_have_headers_and_images_have_text_alternatives(source: str) -> None:
    elements = Page(source).elements
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in elements if tag == "th")
    images = [attributes for tag, attributes in elements if tag == "img"]
    assert len(images) == 3 * 6 * 2 * 3
    assert all(attributes["alt"] for attributes in images)
    assert all(attributes["aria-label"] for _, attributes in elements if "data-plot" in attributes)
    labels = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(labels) == len(set(labels))
    assert {a["href"][1:] for tag, a in elements if tag == "a"} <= set(labels)


def test_hostile_names_stay_text(source: str, hostile_study) -> None:
    text = render_study(hostile_study)
    page = Page(text)
    assert page.count("script") == Page(source).count("script") == 3
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert page.text.count(HOSTILE) >= 10


@pytest.mark.parametrize("value", [[HOSTILE], {"<!--": "]]>&amp;"}])
def test_embedded_json_reads_back_and_cannot_end_its_element(value: object) -> None:
    text = embedded(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_warnings_and_refusals_are_shown(make_run, make_study) -> None:
    page = Page(render_study(make_study([make_run("a", 0, n=20), make_run("b", 0, n=30)])))
    assert "evaluate both on the same data in the same order." in page.text


def test_one_run_without_images_log_or_training_still_gives_a_page(make_run, make_study) -> None:
    run = make_run("a", 7, n=9)
    facts = {"attacks": run.records.facts["attacks"]}
    bare = replace(run, metrics=[], records=replace(run.records, facts=facts, arrays={}))
    page = Page(render_study(make_study([bare])))
    assert "one seed" not in page.text  # it was not trained here
    assert not any(attributes.get("id") in ("images", "training") for _, attributes in page.elements)


def test_an_empty_evaluation_gives_a_page(make_run, make_study) -> None:
    run = make_run("a", 0, n=0)
    empty = replace(run, records=replace(run.records, arrays={}))
    assert "No sample was evaluated." in Page(render_study(make_study([empty]))).text


def test_the_page_is_written_atomically_into_new_folders(study, source: str, tmp_path: Path) -> None:
    write_page(tmp_path / "a" / "b" / "report.html", study_page(study))
    assert (tmp_path / "a" / "b" / "report.html").read_text("utf-8") == source
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["report.html"]


def test_a_new_section_is_one_file(study, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "extra.py").write_text(
        "from holdfast.report.page import Section\n"
        "ORDER = 15\n"
        "def section(study):\n"
        "    return Section(id='extra', title='Extra', sentences=['One more.'], warnings=['Mind this.'])\n"
    )
    before = [section.id for section in sections(study)]
    monkeypatch.setattr("holdfast.report.sections.__path__", [*holdfast.report.sections.__path__, str(tmp_path)])
    assert [section.id for section in sections(study)] == [before[0], "extra", *before[1:]]
    text = Page(render_study(study)).text
    assert "One more." in text
    assert "Mind this." in text
    monkeypatch.delitem(sys.modules, "holdfast.report.sections.extra")


def test_sections_come_in_their_order(study) -> None:
    known = ["results", "pairs", "accuracy", "training", "images", "cost", "recipe", "provenance"]
    assert [section.id for section in sections(study) if section.id in known] == known
    assert all(isinstance(section, Section) for section in sections(study))


@pytest.fixture(scope="module")
def file(study, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(path, study_page(study))
    return path


def test_a_browser_draws_every_plot_and_saves_it_as_svg(open_page, file: Path) -> None:
    page, complaints = open_page(file, viewport={"width": 1200, "height": 900}, color_scheme="light")
    assert page.locator("[data-plot] .scatterlayer .trace").count() >= 18
    assert page.evaluate("document.documentElement.scrollWidth") == 1200
    page.locator("[data-plot]").first.hover()
    buttons = page.locator("[data-plot]").first.locator(".modebar-btn")
    # nothing that would send the figure anywhere
    assert [b.get_attribute("data-title") for b in buttons.all()] == ["Download plot", "Zoom", "Pan", "Reset axes"]
    with page.expect_download() as download:
        buttons.first.click()
    assert download.value.suggested_filename.endswith(".svg")
    assert "<svg" in Path(download.value.path()).read_text("utf-8")
    assert complaints == []
    page.close()


def test_a_dark_phone_needs_no_horizontal_scrolling(open_page, file: Path) -> None:
    page, complaints = open_page(file, viewport={"width": 390, "height": 800}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 21, 26)"
    assert page.locator("tr.seed:visible").count() == 0
    page.locator("button.seeds").first.click()
    assert page.locator("tr.seed:visible").count() == 2
    assert complaints == []
    page.close()


def test_a_browser_runs_no_script_in_a_name(open_page, hostile_study, tmp_path) -> None:
    write_page(tmp_path / "page.html", study_page(hostile_study))
    page, complaints = open_page(tmp_path / "page.html")
    assert page.evaluate("window.broken") is None
    assert page.locator(".legendtext").first.text_content() == HOSTILE
    assert complaints == []
    page.close()


def test_an_old_browser_says_that_it_cannot_draw(browser: Any, source: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(source, encoding="utf-8")
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("#undrawn").wait_for(state="visible")
    assert page.locator("#results table").first.is_visible()
    page.close()
