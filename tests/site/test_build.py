"""The site as files: every fact is on its page, every link leads somewhere, and wrong input is refused or named."""

import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from paper_repro.artifacts import catalogue
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.render import render
from paper_repro.base.command_line import RESULTS, ROOT
from paper_repro.base.errors import UsageError
from paper_repro.cells import records
from paper_repro.site import figures, folder
from paper_repro.site.build import MENU, build, deviation
from paper_repro.tests.support import small_results
from paper_repro.tests.support.small_results import ABSENT, BAD, ONE, TWO


class Page(HTMLParser):
    """What a test asks of a page: addresses, ids, scripts, its text, and the lines of its table of numbers."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.wrong: list[str] = []
        self.lines: list[list[str]] = []
        self.pieces: list[str] = []
        self.open: list[str] = []
        self.counts = False
        self.feed(path.read_text(encoding="utf-8"))
        self.text = "".join(self.pieces)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.addresses += [given[name] for name in ("href", "src") if name in given]
        self.ids.add(given.get("id", ""))
        self.wrong += [f"a handler {name}" for name in given if name.startswith("on")]
        is_ours = given.get("src", "").endswith("static/site.js") or given.get("type") == "application/json"
        self.wrong += [f"a script {given}"] if tag == "script" and not is_ours else []
        if tag == "table":
            self.counts = given.get("class", "").startswith("numbers")
        if self.counts and tag == "tr":
            self.lines.append([])
        if self.counts and tag in ("th", "td"):
            self.lines[-1].append("")
        if tag not in ("br", "hr", "img", "input", "link", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes another element")
        self.counts = self.counts and tag != "table"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "script":
            self.pieces.append(data)
            if self.counts and self.lines and self.lines[-1] and data.strip():
                self.lines[-1][-1] += data.strip()


def problems(root: Path) -> list[str]:
    """Return what is wrong with a site: links that lead nowhere or outside, scripts and handlers that are not ours."""
    pages = {path.resolve(): Page(path) for path in sorted(root.rglob("*.html"))}
    found = [f"{path}: {wrong}" for path, page in pages.items() for wrong in page.wrong]
    for path, page in pages.items():
        for address in page.addresses:
            place, _, fragment = address.partition("#")
            if address == "data:," or address.startswith("data:image/png;base64,"):
                continue
            there = (path.parent / unquote(place)).resolve() if place else path
            is_there = root.resolve() in there.parents and there.is_file() and "//" not in place
            if not is_there or (fragment and there in pages and fragment not in pages[there].ids):
                found.append(f"{path}: {address[:100]} leads nowhere")
    return found


def small(tmp_path: Path, **changes: Any) -> Path:
    """Return the page of the one table of a small site."""
    build(small_results.write(tmp_path / "results", **changes), tmp_path / "site")
    return tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html"


def test_the_site_of_the_results_has_every_page_and_no_link_leads_nowhere(site: Any) -> None:
    assert site.seconds < 30.0, "10 on a machine that does nothing else"
    there = {path.relative_to(site.folder).with_suffix("").as_posix() for path in site.folder.rglob("*.html")}
    wanted = {name.removesuffix(".html") for name in MENU}
    wanted |= {f"records/{path.parent.name}" for path in RESULTS.glob("cells/*/record.json")}
    wanted |= {f"artifacts/{path.parent.relative_to(RESULTS).as_posix()}" for path in RESULTS.glob("*/*/*/table.json")}
    assert there == wanted and f"{len(there):,} pages" in site.printed
    assert problems(site.folder) == []


def test_the_pages_say_what_the_tables_say(site: Any) -> None:
    """Every number, claim with its reason, note and figure of a published table is on its page."""
    ledger, sheet = Page(site.folder / "claims.html").text, Page(site.folder / "figures.html").addresses
    for path in sorted(RESULTS.glob("*/*/*/table.json")):
        document, name = json.loads(path.read_text(encoding="utf-8")), path.parent.relative_to(RESULTS).as_posix()
        text = Page(site.folder / "artifacts" / f"{name}.html").text
        words = [claim[key] for claim in document["claims"] for key in ("says", "verdict", "because", "where")]
        assert [word for word in words if word not in text or word not in ledger] == [], path
        assert [word for word in (document["title"], document["source"], *document["notes"]) if word not in text] == []
        printed = (path.parent / "table.md").read_text(encoding="utf-8").partition("## ")[0]
        lines = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("| ")]
        numbers = {cell.strip().replace("**", "") for line in lines for cell in line if " ± " in cell}
        assert [number for number in sorted(numbers) if number not in text] == [], path
        for figure in path.parent.glob("figure*.svg"):
            assert f"files/{name}/{figure.name}" in sheet, figure


def test_records_and_benches_are_on_their_pages_with_their_numbers(site: Any) -> None:
    for path in sorted(RESULTS.glob("cells/*/record.json"))[::97]:
        content = json.loads(path.read_bytes())
        text = Page(site.folder / "records" / f"{content['cell']}.html").text
        wanted = [f"{value:.10g}" for value in content["metrics"].values()]
        assert [word for word in (*wanted, *content["metrics"], content["sha256"]) if word not in text] == [], path
    text = Page(site.folder / "benches.html").text
    for path in RESULTS.glob("bench/*.json"):
        content = json.loads(path.read_bytes())
        assert path.stem in text and str(content["device"]) in text
        ratios = [f"{found['ratio']:.2f}×" for found in content.get("comparisons", ())]
        assert [ratio for ratio in ratios if ratio not in text] == []
    record = sorted(RESULTS.glob("cells/*/record.json"))[5].parent.name
    assert "paper_repro/conf/" in Page(site.folder / "records" / f"{record}.html").text, "where a value is set"
    assert deviation("# @x\n# Deviations: one;\n#    two\n# Feeds:  y\nkey: 1\n") == "one; two"
    assert deviation("key: 1\n# Deviations: no\n") == ""


def test_words_are_text_and_scripts_of_others_are_gone(tmp_path: Path) -> None:
    page, to = small(tmp_path), tmp_path / "site"
    assert problems(to) == []
    assert Page(page).text.count(BAD) >= 8, "title, source, data, label, claim, note"
    content = page.read_text(encoding="utf-8")
    for word in ("example.org", "foreignObject", "alert(2)", "alert(3)", "display: none", "<b onclick", "<i>"):
        assert word not in content
    assert BAD in Page(to / "records" / f"{ONE}.html").text and BAD in Page(to / "claims.html").text


def test_the_same_results_give_the_same_bytes_and_a_second_build_deletes_its_own_old_files_alone(
    tmp_path: Path,
) -> None:
    small(tmp_path)
    results, to, again = tmp_path / "results", tmp_path / "site", tmp_path / "again"
    build(results, again)
    files = {path.relative_to(to): path.read_bytes() for path in to.rglob("*") if path.is_file()}
    assert files == {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    (to / "notes.txt").write_text("mine")
    changed = to / "records" / f"{ONE}.html"
    changed.write_text("changed by hand")
    for cell in (ONE, TWO):
        (results / "cells" / cell / "record.json").unlink()
    build(results, to)
    assert (to / "notes.txt").read_text() == "mine" and changed.read_text() == "changed by hand"
    assert not (to / "records" / f"{TWO}.html").exists()


def test_absent_and_damaged_records_are_named_and_the_build_goes_on(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    path = results / "cells" / TWO / "record.json"
    path.write_bytes(path.read_bytes().replace(b'"loss":2.0', b'"loss":9.0'))
    (results / "own" / "one" / "cpu" / "figure.svg").write_text("<html><p>no drawing")
    assert build(results, tmp_path / "site").damaged == (TWO,)
    text = Page(tmp_path / "site" / "artifacts" / "own" / "one" / "cpu.html").text
    assert f"no record here ({ABSENT})" in text and "The figure cannot be shown" in text
    assert f"no record here ({TWO}: cells/{TWO}/record.json: its hash does not fit its content" in text
    assert "its hash does not fit" in Page(tmp_path / "site" / "records.html").text
    assert problems(tmp_path / "site") == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": None}, "'rows' is no list"),
        ({"rows": [{"quantity": "loss", "verdict": "", "own_mean": "1"}]}, "'str'"),
        ({"title": 3}, "'title' is no str"),
        ({"cells": {"../../../secret": {"seed": 0}}}, "'../../../secret' is no id of a cell"),
        ({"artifact": "own/two"}, "it is the table of own/two"),
        ({"claims": [{"id": "x"}]}, "'verdict'"),
        ({"claims": [{"id": "x", "verdict": "holds", "whose": "paper"}]}, "'says'"),
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


def test_a_damaged_bench_is_named(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    (results / "bench").mkdir()
    (results / "bench" / "x.cpu.json").write_text('{"bench": "x"}')
    with pytest.raises(UsageError, match=r"bench/x\.cpu\.json: damaged: .*bench\.py x"):
        build(results, tmp_path / "site")


def test_nothing_is_written_outside_the_folder(tmp_path: Path) -> None:
    results, to, elsewhere = small_results.write(tmp_path / "results"), tmp_path / "site", tmp_path / "elsewhere"
    (results / "secret.json").write_text("secret")
    path = results / "cells" / ONE / "record.json"
    content = {**json.loads(path.read_bytes()), "attachments": {"../../secret.json": "0" * 64}}
    path.write_bytes(records.sealed({key: value for key, value in content.items() if key != "sha256"}))
    assert build(results, to).damaged == (ONE,)
    assert [found for found in to.rglob("*") if found.is_file() and found.read_bytes() == b"secret"] == []
    for name in ("../x", "/x", "a/../../x", "report.json", ""):
        with pytest.raises(UsageError, match="no path of a report's file"):
            folder.write(to, {name: b""})
    elsewhere.mkdir()
    shutil.rmtree(to / "records")
    (to / "records").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="a link, expected a folder of the report"):
        build(results, to)
    assert list(elsewhere.iterdir()) == []


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    results, to = small_results.write(tmp_path / "results"), tmp_path / "mine"
    to.mkdir()
    (to / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'thesis\.txt' and no report\.json.*to=DIR"):
        build(results, to)
    (to / "report.json").write_text('{"written_by": "me", "files": {}}')
    with pytest.raises(UsageError, match="left alone"):
        build(results, to)
    assert sorted(path.name for path in to.iterdir()) == ["report.json", "thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="something else than a folder"):
        build(results, tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        build(results, tmp_path / "file" / "below")


def test_a_build_that_was_stopped_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, to = small_results.write(tmp_path / "results"), tmp_path / "site"
    write, left = folder._write, iter(range(4))

    def stop(path: Path, content: bytes) -> None:
        next(left)
        write(path, content)

    monkeypatch.setattr(folder, "_write", stop)
    with pytest.raises(StopIteration):
        folder.write(to, dict.fromkeys("abcdef", b"x"))
    monkeypatch.setattr(folder, "_write", write)
    build(results, to)
    assert problems(to) == [] and not (to / "a").exists()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "scripts" / "report.py"), *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["too=x"], "did you mean 'to'?"),
        (["from=/no/such/folder"], "no such folder"),
        (["from=docs"], "no table below it"),
        (["to=docs"], "is left alone"),
    ],
)
def test_wrong_words_are_refused_on_one_line(words: list[str], said: str) -> None:
    done = command(*words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_two_builds_into_one_folder_exclude_each_other(tmp_path: Path) -> None:
    results = small_results.write(tmp_path / "results")
    with folder.opened(tmp_path / "site"):
        done = command(f"from={results}", f"to={tmp_path / 'site'}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "another process builds a report there; wait for it, or give another folder with to=DIR" in done.stderr


def test_the_site_of_a_user_s_runs_says_what_the_printed_table_says(tmp_path: Path) -> None:
    """Two of four seeds, as if the user had run them: the reference is beside them."""
    plan, runs = plans.make(catalogue.load("cem/table3"), "cpu"), tmp_path / "runs"
    for cell in {cell.id for cell in plan.all_cells if cell.seed in (0, 1)}:
        shutil.copytree(RESULTS / "cells" / cell, runs / "cells" / cell)
    printed = render(plan, runs, RESULTS)[0].grid(markup=("", ""), chosen=["test_rmse"])
    place = printed.headers.index("Test RMSE: paper")
    build(runs, tmp_path / "site")
    groups, kinds, *lines = Page(tmp_path / "site" / "artifacts" / "cem" / "table3" / "cpu.html").lines
    first = 2 + 5 * (groups.index("Test RMSE") - 2)
    assert kinds[first - 2 : first + 2] == ["paper", "reference", "ours", "as reference"]
    assert len(lines) == len(printed.rows) > 30
    assert [line[first : first + 4] for line in lines] == [row[place : place + 4] for row in printed.rows]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*/*/figure*.svg")), ids=lambda path: str(path)[-40:-4])
def test_marks_of_a_figure_show_rows_of_its_csv(path: Path) -> None:
    drawn = figures.drawing(path.read_bytes(), path.with_suffix(".csv").read_bytes(), "")
    rows = [{name: value.replace("\n", "\\n") for name, value in row.items()} for row in drawn.rows]
    assert drawn.marks
    for _, _, text, _ in drawn.marks:
        for part in text.split("\n\n"):
            given = dict(line.split(": ", 1) for line in part.split("\n"))
            is_mean = given.get("seed", "").startswith("mean of")
            assert is_mean or any(given.items() <= row.items() for row in rows), text


def test_a_mark_shows_the_row_that_lies_there_or_the_mean_over_seeds() -> None:
    drawn = figures.drawing(small_results.SVG, b"model,step,loss\n<i>,5,10\nother,5,20\n", "")
    assert [list(mark) for mark in drawn.marks] == [[50.0, 50.0, "model: <i>\nstep: 5\nloss: 10", 0]]
    assert "&lt;script&gt;" in drawn.svg and "<script>" not in drawn.svg
    assert figures.drawing(small_results.SVG, b"model,step,loss\n<i>,6,10\nother,7,10\n", "").marks == []
    (mark,) = figures.drawing(small_results.SVG, b"seed,step,loss\n0,5,8\n1,5,12\n", "").marks
    assert mark[2] == "seed: mean of 2\nstep: 5\nloss: 10"
