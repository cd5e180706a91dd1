"""The report in a real browser: every page, filters, clicks, numbers behind marks, light and dark, wide and narrow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.command_line import RESULTS
from paper_repro.report.site import build
from paper_repro.tests.support import browser as browsers
from paper_repro.tests.support import small_results
from paper_repro.tests.support.browser import Browser

WIDTHS = (390, 1280)
OVERFLOW = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const broken = [...document.images].filter((one) => one.complete && !one.naturalWidth);
return [wide, document.body.innerText.length, broken.length];
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.opened() as found:
        yield found


def quiet(browser: Browser, root: Path) -> None:
    """Check that the console said nothing and that nothing outside the site was asked for."""
    assert browser.complaints() == []
    inside = root.resolve().as_uri()
    assert [one for one in browser.requests() if not one.startswith((f"{inside}/", "data:", "blob:"))] == []


def test_what_a_page_complains_of_and_asks_for_is_noticed(tmp_path: Path, browser: Browser) -> None:
    page, outside = tmp_path / "page.html", "http://127.0.0.1:65535/outside.png"
    page.write_text(f'<img src="{outside}"><script>console.error("it says"); throw new Error("it breaks")</script>')
    browser.open(page)
    complaints = "\n".join(browser.complaints())
    assert "it says" in complaints and "it breaks" in complaints
    assert browser.requests() == {page.resolve().as_uri(), outside}


def seeds_of(artifact: str, quantity: str) -> int:
    """Return how many seeds the first published number of that quantity was made of."""
    table = json.loads((RESULTS / artifact / "table.json").read_bytes())
    return next(row["own_seeds"] for row in table["rows"] if row["quantity"] == quantity)


def test_every_page_opens_and_is_as_wide_as_the_window(site: Any, browser: Browser) -> None:
    pages = sorted(site.folder.rglob("*.html"))
    wrong = []
    for number, page in enumerate(pages):
        browser.resize(WIDTHS[0])
        browser.open(page)
        for width in WIDTHS:
            browser.resize(width)
            wide, length, broken = browser.run(OVERFLOW)
            if wide > 0 or length < 100 or broken:
                wrong.append(
                    f"{page.relative_to(site.folder)} at {width}: {wide} too wide, {length} letters, {broken} images"
                )
        if number % 50 == 0 or number == len(pages) - 1:
            quiet(browser, site.folder)
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(site: Any, browser: Browser, scheme: str) -> None:
    browser.resize(1280)
    browser.paint(scheme)
    names = [path.name for path in site.folder.glob("*.html")]
    names += ["artifacts/cem/table3/cpu.html", "artifacts/nrgpt/table5/cpu.html"]
    names += [path.relative_to(site.folder).as_posix() for path in sorted(site.folder.glob("records/*.html"))[:3]]
    for name in names:
        browser.open(site.folder / name)
        poor, ground = browser.run(CONTRAST)
        assert poor == [], name
        assert (ground < 0.1) == (scheme == "dark")
    browser.open(site.folder / "artifacts/cem/table3/cpu.html")
    drawn = browser.run("return getComputedStyle(document.querySelector('.drawing')).backgroundColor")
    assert drawn == "rgb(255, 255, 255)", "figures are drawn for a white ground"
    browser.paint("light")
    quiet(browser, site.folder)


def test_filters_and_words_leave_what_fits(site: Any, browser: Browser) -> None:
    browser.open(site.folder / "index.html")
    every = browser.run(SHOWN)
    browser.click('button[data-value="ngpt"]')
    of_paper = browser.run("return [...document.querySelectorAll('[data-entry][data-paper=ngpt]')].length")
    assert browser.run(SHOWN) == of_paper < every
    browser.click('button[data-value="fails"]')
    both = browser.run(SHOWN)
    assert both == browser.run(
        "return [...document.querySelectorAll('[data-entry][data-paper=ngpt]')]"
        ".filter((one) => one.dataset.verdict.split('|').includes('fails')).length"
    )
    assert browser.run("return document.querySelector('output').textContent") == f"{both} of {every} artifacts"
    address = browser.url
    assert "paper=ngpt" in address and "verdict=fails" in address
    browser.open(site.folder / "claims.html")
    browser.open(site.folder / "index.html", address.partition("#")[2] and "#" + address.partition("#")[2])
    assert browser.run(SHOWN) == both, "the address keeps the filters"
    browser.click('button[data-value="ngpt"]')
    browser.click('button[data-value="fails"]')
    browser.write("[data-search]", "gaussian-process RMSE")
    assert browser.run(SHOWN) == 1
    browser.write("[data-search]", " nowhere")
    assert browser.run(SHOWN) == 0
    browser.open(site.folder / "claims.html")
    every = browser.run(SHOWN)
    counts = []
    for whose in ("paper", "ours"):
        browser.click(f'button[data-filter="whose"][data-value="{whose}"]')
        counts.append(browser.run(SHOWN))
        browser.click(f'button[data-filter="whose"][data-value="{whose}"]')
    assert sum(counts) == every and min(counts) > 0
    quiet(browser, site.folder)


def test_a_click_on_a_number_leads_to_its_record(site: Any, browser: Browser) -> None:
    browser.resize(1280)
    browser.open(site.folder / "artifacts/cem/table3/cpu.html")
    link = 'table.numbers a[data-line="0"][data-quantity="test_rmse"]'
    shown = browser.run(f"return document.querySelector('{link}').textContent")
    browser.click(link)
    rows = browser.run("return [...document.querySelectorAll('.behind tr')].map((row) => row.innerText.split('\\t'))")
    seeds = seeds_of("cem/table3/cpu", "test_rmse")
    assert seeds > 1 and [row[0] for row in rows] == [f"seed {seed}" for seed in range(seeds)]
    mean = sum(float(row[2]) for row in rows) / len(rows)
    assert mean == pytest.approx(float(shown.split()[0]), abs=1e-4)
    browser.click(".behind tr:nth-child(2) a")
    assert "/records/" in browser.url
    assert "test_rmse" in browser.run("return document.body.innerText")
    assert rows[1][2][:6] in browser.run("return document.body.innerText")
    browser.click(".uses a")
    assert browser.url.endswith("/artifacts/cem/table3/cpu.html"), "and back"
    browser.open(site.folder / "artifacts/cem/table1/exact.html")
    browser.click("table.numbers td a:not([data-line])")
    assert "/records/" in browser.url
    quiet(browser, site.folder)


def test_a_mark_tells_its_numbers(site: Any, browser: Browser) -> None:
    browser.resize(1280, 1600)
    browser.open(site.folder / "artifacts/ngpt/fig13/cpu.html")
    x, y, text = browser.run("""
        const svg = document.querySelector(".drawing svg");
        const mark = JSON.parse(document.querySelector("script.marks").textContent)[0];
        svg.scrollIntoView({block: "center"});
        const place = new DOMPoint(mark[0], mark[1]).matrixTransform(svg.getScreenCTM());
        return [place.x, place.y, mark[2]];
    """)
    browser.point_at(x, y)
    assert browser.run("return document.querySelector('.tip').innerText") == text and "perplexity" in text
    browser.point_at(2, 2)
    assert browser.run("return document.querySelector('.tip').hidden")
    quiet(browser, site.folder)


def test_a_picture_tells_its_numbers_up_to_its_corners(site: Any, browser: Browser) -> None:
    browser.resize(1280, 1600)
    browser.open(site.folder / "artifacts/cet/fig2/cpu.html")
    x, y, reach, text = browser.run("""
        const svg = document.querySelector(".drawing svg");
        const mark = JSON.parse(document.querySelector("script.marks").textContent)[0];
        svg.scrollIntoView({block: "center"});
        const matrix = svg.getScreenCTM(), place = new DOMPoint(mark[0], mark[1]).matrixTransform(matrix);
        return [place.x, place.y, mark[3] * matrix.a, mark[2]];
    """)
    assert reach > 20 and text.startswith("method: ep\nseed: 0\nimage: 1\nerror: 0.04")
    browser.point_at(x - 0.6 * reach, y - 0.6 * reach)
    assert browser.run("return document.querySelector('.tip').innerText") == text
    browser.point_at(x - 2 * reach, y)
    assert browser.run("return document.querySelector('.tip').hidden")
    quiet(browser, site.folder)


def test_words_that_look_like_tags_do_nothing(tmp_path: Path, browser: Browser) -> None:
    build(small_results.write(tmp_path / "results"), tmp_path / "site")
    for page in sorted((tmp_path / "site").rglob("*.html")):
        browser.open(page)
        assert (
            browser.run("return document.querySelectorAll('main script:not(.marks), [onclick], [onload]').length") == 0
        )
    browser.open(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html")
    assert small_results.BAD in browser.run("return document.querySelector('h1').innerText")
    quiet(browser, tmp_path / "site")


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
