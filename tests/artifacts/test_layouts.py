"""What a terminal shows of a table: the same words, within its width."""

import re
from pathlib import Path

import pytest

from paper_repro.artifacts import catalogue, layouts, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.layouts import FILE, TerminalLayout
from paper_repro.artifacts.tables import Table
from paper_repro.artifacts.typesetting import Grid
from paper_repro.base.command_line import RESULTS

NARROW = Grid(
    ["Model", "Loss: paper", "Loss: ours", "verdict"], [["The name of a model", "1.0", "1.1 ± 0.1", "off by +10 %"]]
)


def published(name: str, folder: Path) -> Table:
    """The table of somebody who has run nothing yet, with the reference."""
    return render.table_of(views.build(plans.make(catalogue.load(name)), folder, RESULTS))


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize("name", ["cet/table1", "nrgpt/table4", "ngpt/table5", "cem/table3"])
def test_a_terminal_shows_no_line_that_is_wider(name: str, tmp_path: Path) -> None:
    table = published(name, tmp_path)
    whole = table.markdown()
    for width in (100, 120):
        shown = table.markdown(TerminalLayout(width))
        assert max(map(len, shown.splitlines())) <= width
        for number in re.findall(r"\d\S* ± \S*\d", whole):
            assert number in shown, "a number and its spread stand in one line"
        said, seen = whole.partition("## Notes"), shown.partition("## Notes")
        assert words(said[0]) - words(seen[0]) <= {"claim", "whose", "what", "is", "claimed", "verdict"}
        assert words(said[2]) == words(seen[2])


def test_a_wide_terminal_shows_tables_as_their_file_has_them(tmp_path: Path) -> None:
    table = published("cem/table3", tmp_path)
    blocks = [block for block in table.markdown().split("\n\n") if block.startswith("|")]
    assert len(blocks) == 2 and set(blocks) <= set(table.markdown(TerminalLayout(1000)).split("\n\n"))


def test_a_quantity_of_several_columns_has_a_table_with_its_title_above() -> None:
    text = "\n".join(TerminalLayout(50).table(NARROW, fixed=1))
    assert text.splitlines() == [
        "### Loss",
        "| Model       | paper | ours      | verdict      |",
        "|-------------|-------|-----------|--------------|",
        "| The name of | 1.0   | 1.1 ± 0.1 | off by +10 % |",
        "|   a model   |       |           |              |",
    ]


def test_columns_that_do_not_fit_stand_in_tables_of_their_own() -> None:
    grid = Grid(
        ["Model", *(f"Width{n}" for n in range(8))], [["one", *"12345678"], ["Floor: none", *"1234", *[""] * 4]]
    )
    tables = TerminalLayout(50).table(grid, fixed=1)
    assert len(tables) == 2 and all(len(line) <= 50 for table in tables for line in table.splitlines())
    assert re.findall(r"Width\d", "".join(tables)) == grid.headers[1:]
    assert all(table.startswith("| Model") for table in tables)


def test_a_word_longer_than_the_terminal_stays_whole() -> None:
    word = "a" * 60
    assert TerminalLayout(40).prose(f"see {word} there").splitlines() == ["see", word, "there"]
    assert FILE.prose(f"see {word} there") == f"see {word} there"


def test_a_claim_that_does_not_fit_is_an_item_with_its_parts_below() -> None:
    rows = [["up", "paper: Table 1", "It goes up", "**fails**", "1 fails"], ["", "", "Easy", "fails", "ratio 0.9"]]
    grid = Grid(["claim", "whose", "what is claimed", "verdict", "because"], rows)
    assert TerminalLayout(40).claims(grid).splitlines() == [
        "* up (paper: Table 1): **fails**",
        "  It goes up",
        "  because: 1 fails",
        "  * Easy: fails; ratio 0.9",
    ]
    assert TerminalLayout(100).claims(grid) == layouts.markdown_table(grid)
