"""The site in a real browser: widths, colours, filters, records behind numbers, rows behind marks; no network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.command_line import RESULTS
from paper_repro.site.build import build
from paper_repro.tests.support import browser as browsers
from paper_repro.tests.support import small_results
from paper_repro.tests.support.browser import Browser

LAYOUT = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const broken = [...document.images].filter((one) => one.complete && !one.naturalWidth);
return [wide <= 0, document.body.innerText.length > 100, broken.length];
"""
SHOWN = "return [...document.querySelectorAll('[data-entry]')].filter((one) => !one.hidden).length"
CONTRAST = """
const numbers = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = (colour) => numbers(colour).map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!colour.endsWith(", 0)")) return colour;
  }
  return "rgb(255, 255, 255)";
};
const poor = new Set();
for (const node of document.querySelectorAll("main *, header *, footer *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  if (!own || node.closest(".drawing, script") || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const [one, two] = [light(node.closest("svg") ? style.fill : style.color), light(ground(node))];
  const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  if (ratio < 4.4) poor.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
}
return [[...poor], light(ground(document.body))];
"""
FIRST_MARK = """
const svg = document.querySelector(".drawing svg");
const [x, y, text, reach] = JSON.parse(document.querySelector("script.marks").textContent)[0];
svg.scrollIntoView({block: "center"});
const matrix = svg.getScreenCTM(), place = new DOMPoint(x, y).matrixTransform(matrix);
return [place.x, place.y, text, reach * matrix.a];
"""
TIP = "const tip = document.querySelector('.tip'); return tip.hidden ? '' : tip.innerText"
ARTIFACTS = ("cem/table3", "nrgpt/table4", "nrgpt/table5", "ngpt/fig13", "cet/fig2", "ebt/figB3")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.opened() as found:
        yield found


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the console said nothing and that nothing outside the folder was asked for."""
    yield
    if "browser" in request.fixturenames:
        browser: Browser = request.getfixturevalue("browser")
        assert browser.complaints() == []
        assert [one for one in browser.requests() if not one.startswith(("file:///", "data:", "blob:"))] == []


def pages(folder: Path) -> list[Path]:
    """Return the pages that list something, and some artifacts and records."""
    chosen = [folder / "artifacts" / name / "cpu.html" for name in ARTIFACTS]
    return [*sorted(folder.glob("*.html")), *chosen, *sorted(folder.glob("records/*.html"))[::400]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_a_screen_and_can_be_read(site: Any, browser: Browser, scheme: str) -> None:
    browser.paint(scheme)
    for page in pages(site.folder):
        browser.open(page)
        for width in (390, 1280):
            browser.resize(width)
            assert browser.run(LAYOUT) == [True, True, 0], (page, width)
        poor, ground = browser.run(CONTRAST)
        assert poor == [] and (ground < 0.1) == (scheme == "dark"), page
    browser.open(site.folder / "artifacts/cem/table3/cpu.html")
    look = "const drawn = document.querySelector('.drawing'); return [getComputedStyle(drawn).backgroundColor, "
    ground, turned = browser.run(look + "getComputedStyle(drawn.querySelector('svg')).filter]")
    assert (ground == "rgb(255, 255, 255)", turned == "none") == (scheme == "light", scheme == "light")
    browser.paint("light")


def test_filters_and_words_leave_what_fits(site: Any, browser: Browser) -> None:
    browser.resize(1280)
    browser.open(site.folder / "index.html")
    every = browser.run(SHOWN)
    browser.click('button[data-value="ngpt"]')
    of_paper = browser.run("return document.querySelectorAll('[data-entry][data-paper=ngpt]').length")
    assert browser.run(SHOWN) == of_paper < every
    browser.click('button[data-value="fails"]')
    both = browser.run(SHOWN)
    assert 0 < both < of_paper
    assert browser.run("return document.querySelector('output').textContent") == f"{both} of {every} artifacts"
    fragment = browser.url.partition("#")[2]
    assert fragment == "paper=ngpt&verdict=fails"
    browser.open(site.folder / "claims.html")
    assert browser.run(SHOWN) > every
    browser.click('button[data-filter="whose"][data-value="ours"]')
    assert browser.run(SHOWN) == browser.run("return document.querySelectorAll('[data-whose=ours]').length") > 0
    browser.open(site.folder / "index.html", f"#{fragment}")
    assert browser.run(SHOWN) == both, "the address keeps the filters"
    browser.click('button[data-value="ngpt"]')
    browser.click('button[data-value="fails"]')
    browser.write("[data-search]", "gaussian-process RMSE")
    assert browser.run(SHOWN) == 1


def test_a_click_on_a_number_leads_to_its_records(site: Any, browser: Browser) -> None:
    browser.resize(1280)
    browser.open(site.folder / "artifacts/cem/table3/cpu.html")
    link = 'table.numbers a[data-line="0"][data-quantity="test_rmse"]'
    shown = browser.run(f"return document.querySelector('{link}').textContent")
    browser.click(link)
    rows = browser.run("return [...document.querySelectorAll('.behind tr')].map((row) => row.innerText.split('\\t'))")
    table = json.loads((RESULTS / "cem/table3/cpu/table.json").read_bytes())
    seeds = next(row["own_seeds"] for row in table["rows"] if row["quantity"] == "test_rmse")
    assert [row[0] for row in rows] == [f"seed {seed}" for seed in range(seeds)] and seeds > 1
    mean = sum(float(row[2]) for row in rows) / len(rows)
    assert mean == pytest.approx(float(shown.split()[0]), abs=1e-4)
    browser.click(".behind tr:nth-child(2) a")
    assert "/records/" in browser.url
    assert rows[1][2][:6] in browser.run("return document.body.innerText")
    browser.click(".uses a")
    assert browser.url.endswith("/artifacts/cem/table3/cpu.html"), "and back"


def test_settings_are_folded_and_one_click_shows_them(site: Any, browser: Browser) -> None:
    browser.open(site.folder / "artifacts/nrgpt/table4/cpu.html")
    look = "return [...document.querySelectorAll('th.setting')].filter((one) => one.getClientRects().length).length"
    assert browser.run(look) == 0
    browser.click(".fold input")
    assert browser.run(look) > 0


@pytest.mark.parametrize(("artifact", "is_picture"), [("ngpt/fig13", False), ("cet/fig2", True)])
def test_a_mark_shows_its_row(site: Any, browser: Browser, artifact: str, is_picture: bool) -> None:
    browser.resize(1280, 1600)
    browser.open(site.folder / "artifacts" / artifact / "cpu.html")
    x, y, text, reach = browser.run(FIRST_MARK)
    assert (reach > 20) == is_picture
    browser.point_at(x - 0.6 * reach, y - 0.6 * reach)
    assert browser.run(TIP) == text and ("image: 1" if is_picture else "perplexity") in text
    browser.point_at(2, 2)
    assert browser.run(TIP) == ""


def test_words_that_look_like_tags_do_nothing(tmp_path: Path, browser: Browser) -> None:
    build(small_results.write(tmp_path / "results"), tmp_path / "site")
    for page in sorted((tmp_path / "site").rglob("*.html")):
        browser.open(page)
        assert browser.run("return document.querySelectorAll('main script:not(.marks), [onclick]').length") == 0
    browser.open(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html")
    assert small_results.BAD in browser.run("return document.querySelector('h1').innerText")


def test_where_the_browser_is_missing_a_test_is_skipped_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    driver, browser = tmp_path / "chromedriver", tmp_path / "chromium"
    for path, absent in ((None, "chromedriver"), (driver, "chromium")):
        if path is not None:
            path.touch(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        missing = f"{absent} is not installed; apt-get install -y chromium chromium-driver"
        with pytest.warns(UserWarning, match=missing), pytest.raises(pytest.skip.Exception, match=missing):
            browsers.find()
    browser.touch(0o755)
    assert browsers.find() == (str(driver), str(browser))
