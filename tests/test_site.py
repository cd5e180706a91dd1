"""The pages of docs/ as a site, and the page that lists other readings of the papers."""

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paper_repro.base.configs import check_targets, compose
from paper_repro.base.errors import ROOT

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
