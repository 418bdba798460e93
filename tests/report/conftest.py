"""Records that are made up, for tests that need no model, and a browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synthetic_study import make_run, make_study, study, without  # noqa: F401  (fixtures)
from waiting import until

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-extensions",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Callable[..., tuple[Any, list[str]]]:
    """Opens a page from disk; also returns what it wrote to the console and the addresses that it asked for."""

    def opened(path: Path, **options: Any) -> tuple[Any, list[str]]:
        page = browser.new_page(**options)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
        page.goto(path.as_uri())
        drawn = (
            "[...document.querySelectorAll('[data-plot], [data-part=chart]')].every(d => d.querySelector('.main-svg'))"
        )
        until(page, drawn)
        return page, complaints

    return opened
