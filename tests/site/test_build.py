"""The site as files: every fact is on its page, every link leads somewhere, and wrong input is refused or named."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from paper_repro.base.errors import RESULTS, UsageError
from paper_repro.exports.card import listed as listed_models
from paper_repro.site.files import adjusted, headlines, misses
from paper_repro.site.pages import MENU, build
from paper_repro.tests.support import small_results
from paper_repro.tests.support.small_results import ABSENT, BAD, ONE, TWO, claim


class Page(HTMLParser):
    """What a test asks of a page: addresses, ids, scripts and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses, self.ids, self.wrong, self.text, self.tag = list[str](), set[str](), list[str](), "", ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given, self.tag = {name: value or "" for name, value in attributes}, tag
        self.addresses += [given[name] for name in ("href", "src") if name in given]
        self.ids.add(given.get("id", ""))
        self.wrong += [f"a handler {name}" for name in given if name.startswith("on")]
        is_ours = given.get("src", "").endswith("static/site.js") or given.get("type") == "application/json"
        self.wrong += [f"a script {given}"] if tag == "script" and not is_ours else []

    def handle_data(self, data: str) -> None:
        self.text += data if self.tag not in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self.tag = ""


def problems(root: Path) -> list[str]:
    """Return what is wrong with a site: links that lead nowhere or outside, scripts and handlers that are not ours."""
    pages = {path.resolve(): Page(path) for path in sorted(root.rglob("*.html"))}
    found = [f"{path}: {wrong}" for path, page in pages.items() for wrong in page.wrong]
    for path, page in pages.items():
        for address in page.addresses:
            place, _, fragment = address.partition("#")
            if address.startswith("data:"):
                continue
            there = (path.parent / unquote(place)).resolve() if place else path
            is_there = root.resolve() in there.parents and there.is_file() and "//" not in place
            if not is_there or (fragment and there in pages and fragment not in pages[there].ids):
                found.append(f"{path}: {address[:100]} leads nowhere")
    return found


@pytest.mark.slow
def test_the_site_of_the_results_has_every_page_and_no_link_leads_nowhere(site: Any) -> None:
    assert site.seconds < 20.0
    there = {path.relative_to(site.folder).with_suffix("").as_posix() for path in site.folder.rglob("*.html")}
    wanted = {name.removesuffix(".html") for name in MENU}
    wanted |= {f"records/{path.parent.name}" for path in RESULTS.glob("cells/*/record.json")}
    wanted |= {f"models/{name}" for name in listed_models()["models"]}
    wanted |= {f"papers/{path.parents[2].name}" for path in RESULTS.glob("*/*/*/table.json")}
    wanted |= {f"artifacts/{path.parent.relative_to(RESULTS).as_posix()}" for path in RESULTS.glob("*/*/*/table.json")}
    assert there == wanted and f"{len(there):,} pages" in site.printed
    assert problems(site.folder) == []


@pytest.mark.slow
def test_the_pages_say_what_the_tables_say(site: Any) -> None:
    """Every number, claim with its reason, note and figure of a published table is on its page."""
    ledger, sheet = Page(site.folder / "claims.html").text, Page(site.folder / "figures.html").addresses
    for path in sorted(RESULTS.glob("*/*/*/table.json")):
        document, name = json.loads(path.read_text(encoding="utf-8")), path.parent.relative_to(RESULTS).as_posix()
        text = Page(site.folder / "artifacts" / f"{name}.html").text
        words = [one[key] for one in document["claims"] for key in ("says", "word", "because", "where", "claimed")]
        words += [one["estimate"]["text"] for one in document["claims"] if one["estimate"]]
        assert [word for word in words if word not in text or word not in ledger] == [], path
        words = [word.replace("`", "") for word in (document["headline"], *document["notes"])]
        assert [word for word in words if word not in text] == [], path
        printed = (path.parent / "table.md").read_text(encoding="utf-8").partition("## ")[0].replace("**", "")
        assert [number for number in re.findall(r"[-\d.]+ ± [\d.]+(?: ‡)?", printed) if number not in text] == [], path
        for figure in path.parent.glob("figure*.svg"):
            assert f"figures/{name}/{figure.name}" in sheet, figure


def test_words_are_text_and_colours_follow_the_page(tmp_path: Path) -> None:
    to, page = tmp_path / "site", tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html"
    build(small_results.write(tmp_path / "results"), to)
    assert problems(to) == []
    assert Page(page).text.count(BAD) >= 3, "title, lead, row"
    drawn = (to / "figures" / "own" / "one" / "cpu" / "figure.svg").read_text(encoding="utf-8")
    for content in (page.read_text(encoding="utf-8"), drawn):
        for word in ("display: none", "<b onclick", "<i>"):
            assert word not in content
        for word in ("var(--ground-drawn,#ffffff)", "var(--ink-drawn,#222222)", "stroke: #123456"):
            assert word in content
    assert "1.5 ± 0.5 ‡" in Page(page).text
    assert BAD in Page(to / "records" / f"{ONE}.html").text and BAD in Page(to / "claims.html").text


def test_a_second_build_gives_the_same_bytes_and_deletes_its_own_old_files_alone(tmp_path: Path) -> None:
    results, to, again = small_results.write(tmp_path / "results"), tmp_path / "site", tmp_path / "again"
    for folder in (to, again):
        build(results, folder)
    files = {path.relative_to(to): path.read_bytes() for path in to.rglob("*") if path.is_file()}
    assert files == {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    (to / "notes.txt").write_text("mine")
    (results / "cells" / TWO / "record.json").unlink()
    build(results, to)
    assert (to / "notes.txt").read_text() == "mine" and not (to / "records" / f"{TWO}.html").exists()


def test_absent_and_damaged_records_are_named_and_the_build_goes_on(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    path = results / "cells" / TWO / "record.json"
    path.write_bytes(path.read_bytes().replace(b'"loss":2.0', b'"loss":9.0'))
    assert {*build(results, tmp_path / "site")[0].damaged} == {TWO}
    text = Page(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html").text
    assert f"no record here ({ABSENT})" in text
    assert f"no record here ({TWO}: cells/{TWO}/record.json: its hash does not fit its content" in text
    assert problems(tmp_path / "site") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cells": {"../../../secret": {"seed": 0}}}, "'../../../secret' is no id of a cell"),
        ({"cells": None}, "object is not iterable"),
    ],
)
def test_a_damaged_table_is_named_with_the_way_out(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    results = small_results.write(tmp_path / "results", **changes)
    with pytest.raises(UsageError) as caught:
        build(results, tmp_path / "site")
    text, path = str(caught.value), results / "own" / "one" / "cpu" / "table.json"
    assert text.startswith(f"{path}: damaged: ") and said in text and "\n" not in text
    assert text.endswith(f"'python scripts/reproduce.py own/one scale=cpu --render runs={results}'")
    assert not (tmp_path / "site").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    results, to = small_results.write(tmp_path / "results"), tmp_path / "mine"
    to.mkdir()
    (to / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="give a new or empty folder"):
        build(results, to)
    assert [path.name for path in to.iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="cannot be written"):
        build(results, to / "thesis.txt" / "below")


def test_headlines_have_the_largest_scale_and_its_regime_and_p_values_are_adjusted(tmp_path: Path) -> None:
    path = tmp_path / "headlines.yaml"
    row = "{claim: own/one#x, name: N, paper: P, sentence: S, replications: []}"
    path.write_text(f"- {row}\n- {row.replace('own/one#x', 'own/two#x')}\n")
    small_table = {**small_results.table(), "claims": [claim("other"), claim("x", word="seen")]}
    large = {**small_table, "scale": "gpu", "claims": [claim("x", word="large")], "made_of": "text"}
    first, second = headlines([small_table, large], lambda cell: small_results.record(cell, 0), path)
    assert first.claim is not None and (first.claim["word"], first.scale) == ("large", "gpu")
    assert first.regime == "text; 4 tokens a parameter", "6 steps of 2 windows of 4 tokens, 12 parameters"
    assert second.claim is None
    assert headlines([small_table], lambda cell: None, path)[0].claim == small_table["claims"][1]
    found = adjusted([claim(p=0.01), claim(p=None), claim(p=0.04), claim(p=0.03)])
    assert found[1] is None and [found[0], found[2], found[3]] == pytest.approx([0.03, 0.04, 0.04])
    assert misses([claim()] * 40 + [claim(estimate=None)]).startswith("Of 40 intervals of 95 %, about 2 ")
