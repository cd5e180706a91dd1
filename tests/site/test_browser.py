"""The site in a real browser: widths, colours, filters, values of marks; no network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import RESULTS
from paper_repro.site.pages import build
from paper_repro.tests.support import browser as browsers
from paper_repro.tests.support import small_results
from paper_repro.tests.support.browser import Browser

LAYOUT = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const broken = [...document.images].filter((one) => one.complete && !one.naturalWidth);
return [wide <= 0, document.body.innerText.length > 100, broken.length];
"""
SHOWN = "return [...document.querySelectorAll('[data-entry]')].filter((one) => !one.hidden).length"
FIRST_MARK = """
const svg = document.querySelector(".drawing svg");
const [x, y, ...words] = JSON.parse(document.querySelector("script.marks").textContent)[0];
svg.scrollIntoView({block: "center"});
const place = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
return [place.x, place.y, ...words];
"""
TIP = "const tip = document.querySelector('.tip'); return tip.hidden ? '' : tip.innerText"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser whose console stays silent, and which asks for nothing outside the folder."""
    with browsers.opened() as found:
        yield found
        assert found.complaints() == []
        assert [one for one in found.requests() if not one.startswith(("file:///", "data:", "blob:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_a_screen_and_figures_take_their_colours(site, browser, scheme):
    browser.paint(scheme)
    chosen = [site.folder / "artifacts" / name / "cpu.html" for name in ("cem/table3", "nrgpt/table5", "cet/fig2")]
    for page in [
        *site.folder.glob("*.html"),
        *site.folder.glob("models/*.html"),
        *chosen,
        *sorted(site.folder.glob("records/*.html"))[::800],
    ]:
        browser.open(page)
        for width in (390, 1280):
            browser.resize(width)
            assert browser.run(LAYOUT) == [True, True, 0], (page, width)
    browser.open(site.folder / "artifacts/ngpt/fig2/cpu.html")
    drawn = browser.run("return getComputedStyle(document.querySelector('.drawing path')).fill")
    assert (drawn == "rgb(255, 255, 255)") == (scheme == "light"), "the ground of a figure is that of the page"
    browser.paint("light")


def test_the_first_row_is_the_first_headline_and_filters_leave_what_fits(site: Any, browser: Browser) -> None:
    browser.resize(1280)
    browser.open(site.folder / "index.html")
    claim, *_ = json.loads((RESULTS / "ngpt" / "fig2" / "cpu" / "table.json").read_bytes())["claims"]
    row = browser.run("return document.querySelector('.headlines tbody tr').innerText")
    assert claim["estimate"]["text"] in row and claim["word"] in row
    every = browser.run(SHOWN)
    browser.click('button[data-value="ngpt"]')
    of_paper = browser.run("return document.querySelectorAll('[data-entry][data-paper=ngpt]').length")
    assert browser.run(SHOWN) == of_paper < every
    browser.click('button[data-value="opposite here"]')
    both = browser.run(SHOWN)
    assert 0 < both < of_paper
    assert browser.run("return document.querySelector('output').textContent") == f"{both} of {every} artifacts"
    browser.open(site.folder / "index.html", f"#{browser.current_url.partition('#')[2]}")
    assert browser.run(SHOWN) == both, "the address keeps the filters"


def test_a_mark_shows_its_values_and_words_that_look_like_tags_do_nothing(tmp_path: Path, browser: Browser) -> None:
    build(small_results.write(tmp_path / "results"), tmp_path / "site")
    for page in sorted((tmp_path / "site").rglob("*.html")):
        browser.open(page)
        assert browser.run("return document.querySelectorAll('main script:not(.marks), [onclick]').length") == 0
    browser.open(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html")
    assert small_results.BAD in browser.run("return document.querySelector('h1').innerText")
    x, y, label, *values = browser.run(FIRST_MARK)
    browser.point_at(x - 5, y + 5)
    assert browser.run(TIP) == f"{label}\n{', '.join(values)}" and label == small_results.BAD
    browser.point_at(2, 2)
    assert browser.run(TIP) == ""
