"""The report as files: every link leads somewhere, every word is text, wrong input is refused with the way out."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from paper_repro.base import identity
from paper_repro.base.command_line import RESULTS, ROOT
from paper_repro.base.errors import UsageError
from paper_repro.cells import measurements
from paper_repro.report import folder as folders
from paper_repro.report import shell
from paper_repro.report.drawing import html
from paper_repro.report.drawing import read as read_drawing
from paper_repro.report.hover import marks
from paper_repro.report.markup import Markup, escaped, tag
from paper_repro.report.papers_page import deviation
from paper_repro.report.site import build
from paper_repro.tests.support import small_results
from paper_repro.tests.support.small_results import ABSENT, BAD, ONE, TWO


class Page(HTMLParser):
    """What a test asks of a page: links, ids, elements, and its text without scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.scripts: list[dict[str, str | None]] = []
        self.handlers: list[str] = []
        self.pieces: list[str] = []
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.addresses += [value for name in ("href", "src") if (value := given.get(name)) is not None]
        self.handlers += [name for name in given if name.startswith("on")]
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "script":
            self.scripts.append(given)
        if tag not in ("br", "hr", "img", "input", "link", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "script":
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def problems(root: Path) -> list[str]:
    """Return what is wrong with a site: links that lead nowhere or outside, scripts and handlers that are not ours."""
    pages = {path.resolve(): Page(path) for path in sorted(root.rglob("*.html"))}
    assert pages
    found = []
    for path, page in pages.items():
        name = path.relative_to(root.resolve()).as_posix()
        for address in page.addresses:
            place, _, fragment = address.partition("#")
            if address == "data:," or address.startswith("data:image/png;base64,"):
                continue
            there = (path.parent / unquote(place)).resolve() if place else path
            if "//" in place or place.startswith("/") or root.resolve() not in there.parents or not there.is_file():
                found.append(f"{name}: {address[:100]} leads nowhere")
            elif fragment and there in pages and not _is_there(pages[there], fragment):
                found.append(f"{name}: {address} names no place")
        own = {f"{'../' * name.count('/')}{shell.SCRIPT}"}
        for script in page.scripts:
            if script.get("src") not in own and script.get("type") != "application/json":
                found.append(f"{name}: a script that is not ours, {script}")
        found += [f"{name}: a handler {handler}" for handler in page.handlers]
        found += [f"{name}: </{end}> closes another element" for end in page.crossed]
    return found


def _is_there(page: Page, fragment: str) -> bool:
    # A figure refers to parts of itself; its own parser, not ours, reads those ids.
    return fragment in page.ids


def site_of(tmp_path: Path, **changes: Any) -> Path:
    to = tmp_path / "site"
    build(small_results.write(tmp_path / "results", **changes), to)
    return to


def test_the_report_of_the_results_is_whole_quick_and_has_a_page_for_each_record_and_table(site: Any) -> None:
    assert site.seconds < 20.0
    results = ROOT / "results"
    records = {path.parent.name for path in results.glob("cells/*/record.json")}
    assert {path.stem for path in site.folder.glob("records/*.html")} == records
    tables = {path.parent.relative_to(results).as_posix() for path in results.glob("*/*/*/table.json")}
    pages = (site.folder / "artifacts").rglob("*.html")
    assert {path.relative_to(site.folder / "artifacts").with_suffix("").as_posix() for path in pages} == tables
    assert {path.name for path in site.folder.glob("*.html")} == {*shell.MENU}
    assert f"{len(list(site.folder.rglob('*.html'))):,} pages" in site.printed
    assert problems(site.folder) == []


def test_the_pages_say_what_the_tables_say(site: Any) -> None:
    """Each number, verdict, claim and note of a printed table stands on its page."""
    for path in sorted((ROOT / "results").glob("*/*/*/table.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        page = Page(site.folder / "artifacts" / f"{path.parent.relative_to(ROOT / 'results').as_posix()}.html")
        words = [document["title"], document["source"], *document["notes"]]
        words += [claim[key] for claim in document["claims"] for key in ("says", "verdict", "because", "where")]
        assert [word for word in words if word not in page.text] == [], path
        printed = (path.parent / "table.md").read_text(encoding="utf-8").partition("## ")[0]
        cells = {
            cell.strip().replace("**", "")
            for line in printed.splitlines()
            if line.startswith("| ")
            for cell in line.strip("|").split("|")
        }
        numbers = {cell for cell in cells if " ± " in cell}
        assert [number for number in sorted(numbers) if number not in page.text] == [], path
    page = (site.folder / "artifacts/cem/table3/cpu.html").read_text(encoding="utf-8")
    assert "0, 1, 2, 3; at later looks up to 10 seeds" in page
    assert ", 4 to 10 seeds<" in (site.folder / "index.html").read_text(encoding="utf-8")


def test_the_contact_sheet_has_every_figure_those_of_appendices_last(site: Any) -> None:
    page = (site.folder / "figures.html").read_text(encoding="utf-8")
    shown = re.findall(r'<img src="files/([^"]+)/\w+/(figure\w*)\.svg"', page)
    there = [path.relative_to(RESULTS) for path in RESULTS.glob("*/*/*/figure*.svg")]
    assert sorted(shown) == sorted((path.parts[0] + "/" + path.parts[1], path.stem) for path in there)
    own: dict[str, list[str]] = {}
    for artifact, stem in shown:
        paper, _, name = artifact.partition("/")
        own.setdefault(paper, []).append(name if stem == "figure" else f"{name} appendix")
    papers = [artifact.partition("/")[0] for artifact, _ in shown]
    assert papers == sorted(papers)
    assert own["ebt"][-8:] == ["video_rates", "figB1", "figB2", "figB3", "figB4", "figB6", "figC1", "tableD1"]
    assert own["ngpt"][-2:] == ["fig5 appendix", "fig6 appendix"]


def test_the_same_results_give_the_same_bytes(site: Any, build_anew: Callable[[int], Any]) -> None:
    again = build_anew(2)
    files = [
        {path.relative_to(one): path for path in one.rglob("*") if path.is_file()}
        for one in (site.folder, again.folder)
    ]
    assert files[0].keys() == files[1].keys()
    assert [name for name in files[0] if files[0][name].read_bytes() != files[1][name].read_bytes()] == []


def test_words_are_text_and_scripts_of_others_are_gone(tmp_path: Path) -> None:
    to = site_of(tmp_path)
    assert problems(to) == []
    page = Page(to / "artifacts" / "own" / "one" / "cpu.html")
    assert page.text.count(BAD) >= 8, "title, source, data, label, claim, note"
    content = page.path.read_text(encoding="utf-8")
    for word in ("example.org", "foreignObject", "alert(2)", "alert(3)", "display: none", "<b onclick"):
        assert word not in content
    (drawn,) = [one for one in page.scripts if one.get("type") == "application/json"]
    assert drawn["class"] == "marks" and "<i>" not in content
    assert BAD in Page(to / "records" / f"{ONE}.html").text and BAD in Page(to / "claims.html").text


def test_records_that_are_absent_damaged_or_without_curves_are_named_and_the_build_goes_on(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    path = results / "cells" / TWO / "record.json"
    path.write_bytes(path.read_bytes().replace(b'"loss":2.0', b'"loss":9.0'))
    built = build(results, tmp_path / "site")
    assert built.damaged == (TWO,)
    text = Page(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html").text
    assert f"no record here ({ABSENT})" in text
    assert f"no record here ({TWO}: cells/{TWO}/record.json: its hash does not fit its content" in text
    assert "its hash does not fit" in Page(tmp_path / "site" / "records.html").text
    assert problems(tmp_path / "site") == []


def test_what_a_probe_has_measured_since_stands_on_the_record_s_page(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    node = {"_target_": "paper_repro.tests.support.probes.Summing"}
    probe = identity.probes({"probes": {"later": node}})["later"]
    found = measurements.Measurement(TWO, probe, "later", node, {"later_metric": 7.125}, {}, {}, 1.0)
    measurements.write(results, found, {})
    build(results, tmp_path / "site")
    text = Page(tmp_path / "site" / "records" / f"{TWO}.html").text
    assert "later_metric" in text and "7.125" in text


def test_a_record_without_curves_and_a_table_without_figure_have_pages(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    (results / "own" / "one" / "cpu" / "figure.svg").unlink()
    build(results, tmp_path / "site")
    assert "This record has no curves." in Page(tmp_path / "site" / "records" / f"{TWO}.html").text
    assert "<svg" in (tmp_path / "site" / "records" / f"{ONE}.html").read_text()
    assert "<svg" not in (tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html").read_text()
    (results / "own" / "one" / "cpu" / "figure.svg").write_text("<html><p>no drawing")
    build(results, tmp_path / "site")
    assert "The figure cannot be shown" in Page(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html").text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": None}, "'rows' is no list"),
        ({"rows": [{"quantity": "loss", "own_mean": "1"}]}, "a row whose numbers are none"),
        ({"title": 3}, "'title' is no text"),
        ({"cells": {"../../../secret": {"seed": 0}}}, "'../../../secret' is no id of a cell"),
        ({"artifact": "own/two"}, "it is the table of own/two"),
        ({"claims": [{"id": "x"}]}, "a claim without"),
        ({"notes": [1]}, "a note that is no text"),
    ],
)
def test_a_damaged_table_is_named_with_the_way_out(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    results = small_results.write(tmp_path / "results", **changes)
    with pytest.raises(UsageError) as caught:
        build(results, tmp_path / "site")
    text = str(caught.value)
    assert str(results / "own/one/cpu/table.json") in text and said in text and "reproduce.py own/one" in text
    assert "\n" not in text


def test_a_cut_table_or_bench_is_named(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    path = results / "own" / "one" / "cpu" / "table.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    with pytest.raises(UsageError, match=rf"table\.json: damaged: .*scale=cpu --render runs={results}'$"):
        build(results, tmp_path / "site")
    assert not (tmp_path / "site").exists()
    path.write_bytes(whole)
    (results / "bench").mkdir()
    (results / "bench" / "x.cpu.json").write_text('{"bench": "x"}')
    with pytest.raises(UsageError, match=r"bench/x\.cpu\.json: damaged: .*bench\.py x"):
        build(results, tmp_path / "site")


def test_attachments_cannot_leave_the_folder(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    (results / "secret.json").write_text("secret")
    path = results / "cells" / ONE / "record.json"
    content = {**json.loads(path.read_bytes()), "attachments": {"../../secret.json": "0" * 64}}
    content.pop("sha256")
    from paper_repro.cells.records import sealed

    path.write_bytes(sealed(content))
    assert build(results, tmp_path / "site").damaged == (ONE,)
    assert not [
        found for found in (tmp_path / "site").rglob("*") if found.is_file() and found.read_bytes() == b"secret"
    ]
    for name in ("../x", "/x", "a/../../x", "report.json", ""):
        with pytest.raises(UsageError, match="no path of a report's file"):
            folders.write(tmp_path / "site", {name: b""})


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    to = tmp_path / "mine"
    to.mkdir()
    (to / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'thesis\.txt' and no report\.json.*to=DIR"):
        build(results, to)
    (to / "report.json").write_text('{"written_by": "me"}')
    with pytest.raises(UsageError, match="left alone"):
        build(results, to)
    assert sorted(path.name for path in to.iterdir()) == ["report.json", "thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="something else than a folder"):
        build(results, tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        build(results, tmp_path / "file" / "below")


def test_a_second_build_deletes_its_own_old_files_and_nothing_else(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    to = tmp_path / "site"
    build(results, to)
    (to / "notes.txt").write_text("mine")
    changed = to / "records" / f"{ONE}.html"
    changed.write_text("changed by hand")
    for cell in (ONE, TWO):
        (results / "cells" / cell / "record.json").unlink()
    build(results, to)
    assert (to / "notes.txt").read_text() == "mine"
    assert not (to / "records" / f"{TWO}.html").exists()
    assert changed.read_text() == "changed by hand", "a file that is not as it was written stays"


def test_a_build_that_was_stopped_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = small_results.write(tmp_path / "results")
    to = tmp_path / "site"
    replace, left = folders._replace, iter(range(4))

    def stop(path: Path, content: bytes) -> None:
        next(left)
        replace(path, content)

    monkeypatch.setattr(folders, "_replace", stop)
    with pytest.raises(StopIteration):
        build(results, to)
    monkeypatch.setattr(folders, "_replace", replace)
    build(results, to)
    assert problems(to) == []


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    to, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    build(results, to)
    elsewhere.mkdir()
    for path in (to / "records").iterdir():
        path.unlink()
    (to / "records").rmdir()
    (to / "records").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="a link, expected a folder of the report"):
        build(results, to)
    assert list(elsewhere.iterdir()) == []


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "scripts" / "report.py"), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env={**os.environ})


def test_two_reports_into_one_folder_exclude_each_other(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    with folders.opened(tmp_path / "site"):
        second = command(f"from={results}", f"to={tmp_path / 'site'}")
    assert second.returncode == 2
    assert second.stderr.startswith("error: ") and second.stderr.count("\n") == 1
    assert "another process builds a report there; wait for it, or give another folder with to=DIR" in second.stderr
    third = command(f"from={results}", f"to={tmp_path / 'site'}")
    assert third.returncode == 0, third.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["to="], "to= needs a value"),
        (["too=x"], "did you mean 'to'?"),
        (["site"], "not known here"),
        (["--too"], "unknown option --too"),
        (["from=/no/such/folder"], "no such folder"),
        (["from=docs"], "no table below it"),
        (["to=docs"], "is left alone"),
    ],
)
def test_wrong_words_are_refused_on_one_line(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = command(*words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_markup_is_kept_and_everything_else_is_text() -> None:
    assert escaped(["<", Markup("<br>"), None, 3]) == "&lt;<br>3"
    assert (
        tag("a", "&", href='"><script>', data_x=None, data_y=0, hidden=True)
        == '<a href="&quot;&gt;&lt;script&gt;" data-y="0" hidden>&amp;</a>'
    )


def test_a_mark_is_read_off_an_even_and_a_logarithmic_axis() -> None:
    root = read_drawing(small_results.SVG)
    (mark,) = marks(root, b"model,step,loss\n<i>,5,10\nother,5,20\n")
    assert (mark.x, mark.y) == (50.0, 50.0) and mark.text == "model: <i>\nstep: 5\nloss: 10"
    (mark,) = marks(root, b"")
    assert mark.text == "<script>\nstep: 5\nvalue: 10"
    assert "&lt;script&gt;" in html(root) and "<script>" not in html(root)


def test_deviations_are_those_of_the_head() -> None:
    head = "# @package _global_\n# X: a title\n# Deviations: one thing;\n#    another\n# Feeds:  y\nkey: 1\n"
    assert deviation(head) == "one thing; another"
    assert deviation("key: 1\n# Deviations: no\n") == ""
