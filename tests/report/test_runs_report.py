"""The report of a folder of somebody's own runs: the reference stands beside them, as in the printed table."""

import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from paper_repro.artifacts import catalogue
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.render import render
from paper_repro.base.command_line import RESULTS
from paper_repro.report.site import build
from paper_repro.tests.support import small_results


def columns_of(page: Path) -> list[dict[str, str]]:
    """Return the lines of a page's table of numbers, by the headers of its second row."""

    class Cells(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[list[str]] = []
            self.inside = False

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            if tag == "table":
                self.inside = dict(attributes).get("class") == "numbers"
            if self.inside and tag == "tr":
                self.rows.append([])
            if self.inside and tag in ("th", "td"):
                self.rows[-1].append("")

        def handle_data(self, data: str) -> None:
            if self.inside and self.rows and self.rows[-1]:
                self.rows[-1][-1] += data

    parser = Cells()
    parser.feed(page.read_text(encoding="utf-8"))
    _, kinds, *lines = parser.rows
    return [dict(zip(kinds, line[-len(kinds) :], strict=True)) for line in lines]


def lines_of(folder: Path, **changes: Any) -> list[dict[str, str]]:
    build(small_results.write(folder / "results", **changes), folder / "site")
    return columns_of(folder / "site" / "artifacts" / "own" / "one" / "cpu.html")


def test_the_report_of_somebodys_runs_has_the_reference_beside_them(tmp_path: Path) -> None:
    """As the printed table of such runs has; a table of the committed results has no such columns."""
    given = {"quantity": "loss", "paper_mean": 1.0, "paper_std": None, "own_seeds": 2, "verdict": "reduced scale"}
    reference = {"reference_mean": 1.25, "reference_std": 0.125, "reference_seeds": 3}
    rows = [
        {**given, **reference, "model": "one", "own_mean": 1.5, "own_std": 0.5, "as_reference": "agrees"},
        {**given, "model": "two", "own_mean": 2.5, "own_std": None, "reference_mean": None, "as_reference": ""},
    ]
    found = lines_of(tmp_path / "a", rows=rows, cells={})
    assert [list(line) for line in found] == [["paper", "reference", "ours", "as reference", "verdict"]] * 2
    assert list(found[0].values())[:4] == ["1", "1.25 ± 0.125", "1.5 ± 0.5", "agrees"]
    assert list(found[1].values())[:4] == ["1", "not run", "2.5", ""]
    assert found[0]["verdict"] == "reduced scale"
    alone = [{**row, "reference_mean": None, "as_reference": ""} for row in rows]
    assert list(lines_of(tmp_path / "c", rows=alone, cells={})[0]) == ["paper", "ours", "verdict"]
    assert list(lines_of(tmp_path / "b")[0]) == ["paper", "ours", "verdict"]


def test_the_report_of_a_runs_folder_says_what_its_printed_table_says(tmp_path: Path) -> None:
    """Two of four seeds, as if the user had run them."""
    plan, runs = plans.make(catalogue.load("cem/table3"), "cpu"), tmp_path / "runs"
    kept = {cell.id for cell in plan.all_cells if cell.seed in (0, 1)}
    for cell in kept:
        shutil.copytree(RESULTS / "cells" / cell, runs / "cells" / cell)
    table, _ = render(plan, runs, RESULTS)
    printed = table.grid(markup=("", ""), chosen=["test_rmse"])
    place = printed.headers.index("Test RMSE: paper")
    build(runs, tmp_path / "site")
    found = columns_of(tmp_path / "site" / "artifacts" / "cem" / "table3" / "cpu.html")
    assert len(found) == len(printed.rows) > 30
    for line, row in zip(found, printed.rows, strict=True):
        shown = [line[kind] for kind in ("paper", "reference", "ours", "as reference")]
        assert shown == row[place : place + 4]
