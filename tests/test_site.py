"""The pages of docs/ as a site, and the two pages that list what the code has."""

import functools
import http.server
import importlib
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paper_repro.base.configs import check_targets, compose
from paper_repro.base.errors import ROOT
from paper_repro.kernels.dispatch import ANY_ORDER, Way
from paper_repro.tests.support import browser as browsers

DOCS = ROOT / "docs"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Resources(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        address = found.get(LOADED.get(tag, ""))
        if address and re.match(r"(https?:)?//", address) and found.get("rel") != "canonical":
            self.outside.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.slow
def test_every_page_is_there_and_asks_for_nothing_outside(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    written = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    assert {page.relative_to(site).as_posix() for page in pages} == {*written, "404.html"}
    for page in pages:
        parser = Resources()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.outside == [], page


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_pages_open_in_a_browser_without_a_complaint(site: Path, address: str) -> None:
    with browsers.opened() as browser:
        for page in sorted(site.rglob("*.html")):
            name = page.relative_to(site).as_posix()
            for scheme in ("light", "dark"):
                browser.paint(scheme)
                browser.visit(f"{address}/{name}")
                browser.run("localStorage.clear()")  # where the theme keeps the colours of the page before
                browser.visit(f"{address}/{name}")
                colours = {"light": "default", "dark": "slate"}[scheme]
                assert browser.run("return document.body.dataset.mdColorScheme") == colours, name
                assert browser.run("return document.querySelector('article').innerText.length") > 10, name
            assert browser.complaints() == [], name
            assert [one for one in browser.requests() if not one.startswith((address, "data:", "blob:"))] == [], name


def test_the_page_on_kernels_lists_every_op_with_its_ways() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| ([^|]+) \|$", (DOCS / "kernels.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    said = {op: {tuple(word.rsplit(" ", 1)) for word in ways.split(", ")} for op, ways in rows}
    files = [
        path for path in (ROOT / "kernels").rglob("*.py") if re.search(r"^\w*WAYS\b", path.read_text(), re.MULTILINE)
    ]
    assert said == {path.parent.name if path.stem == "op" else path.stem: _ways(path) for path in files}


def _ways(path: Path) -> set[tuple[str, str]]:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = importlib.import_module(f"paper_repro.{name}")
    lists = [found for found in vars(module).values() if isinstance(found, tuple) and found]
    ways = [way for found in lists if isinstance(found[0], Way) for way in found if way.name != "reference"]
    return {(_kind(way), "any" if way.order == ANY_ORDER else str(way.order)) for way in ways}


def _kind(way: "Way[object]") -> str:
    if way.name == "fused" and not way.triton:
        return "torch"
    return {"fused": "Triton", "closed_form": "by hand"}[way.name]


def test_the_other_readings_of_papers_can_be_asked_for() -> None:
    """Each setting of the page resolves to a config that differs from the default's."""
    text = (DOCS / "disagreements.md").read_text(encoding="utf-8")
    sections = re.findall(r"<!-- settings of: (\S+) -->\n\n(.*?)\n\n", text, re.DOTALL)
    assert len(sections) == 5
    for experiment, table in sections:
        default = compose(experiment, [])
        for row in table.splitlines()[2:]:
            *_, cell = row.strip("| ").split(" | ")
            if cell != "-":
                other = compose(experiment, shlex.split(cell.strip("`")))
                check_targets(other)
                assert other != default, row
