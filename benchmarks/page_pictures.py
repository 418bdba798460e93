"""Pictures of a page of the quickstart, as README and docs show them.

python benchmarks/page_pictures.py [PAGE] [--out FOLDER]

PAGE is the report that `holdfast run quickstart` has written, by default runs/quickstart/report.html. Writes the first
screen at 1280 and at 390 pixels and the look inside at both as PNG files of fewer than 200 kB. Needs chromium and the
development tools (`pip install -e '.[dev]'`).
"""

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
MOST = 200_000  # bytes
DRAWN = (
    "[...document.querySelectorAll('[data-plot], [data-part=chart]')].every((one) => one.querySelector('.main-svg'))"
)


def main() -> None:
    """Open the page at each width and write what is seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", nargs="?", type=Path, default=Path("runs/quickstart/report.html"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    asked = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None or not asked.page.is_file():
        raise SystemExit(f"{'there is no chromium' if chromium is None else f'there is no page {asked.page}'}")
    asked.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for width, height in ((1280, 690), (390, 844)):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.set_default_timeout(180_000)  # the page is tall, and machines that train are slow
            page.goto(asked.page.resolve().as_uri())
            while not page.evaluate(DRAWN):  # asked from outside, because the policy of the page forbids `eval` inside
                page.wait_for_timeout(50)
            write(asked.out / f"page-{width}.png", page.screenshot())
            write(asked.out / f"inside-{width}.png", inside(page))
        browser.close()


def inside(page: Any) -> bytes:
    """The map of features in the middle of the attack on a defended model, with a sample that is misclassified."""
    page.locator("[data-part=model]").select_option(label="TLA")
    page.locator("[data-part=step]").fill("5")
    for _ in range(200):
        if "\N{BALLOT X}" in page.locator("[data-part=labels]").text_content():
            break
        page.locator("[data-part=next]").click()
    page.evaluate("document.activeElement.blur()")
    found: bytes = page.locator("#map").screenshot()
    return found


def write(path: Path, png: bytes) -> None:
    """Write a picture, compressed as far as it goes."""
    smaller = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(smaller, "png", optimize=True)
    if len(smaller.getvalue()) >= MOST:
        raise SystemExit(f"{path} would take {len(smaller.getvalue()):,} bytes, and {MOST:,} are the most")
    path.write_bytes(smaller.getvalue())
    print(f"{path}: {len(smaller.getvalue()):,} bytes")


if __name__ == "__main__":
    main()
