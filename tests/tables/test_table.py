"""Tables: their four files from made-up records, and the words that compare a number with the paper's."""

import csv
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import DIVERGED, FAILED, Outcome
from paper_repro.tables import table, view
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import Column, Metric, Number, Tolerance
from paper_repro.tables.table import ALTERED, NOT_RUN, OFF, REDUCED, REPRODUCED, Table, on_column, on_metric
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import ARTIFACT

FILES = ["table.md", "table.csv", "table.tex", "table.json"]
Runs = Callable[[PlannedCell], Outcome | None]


def like_the_paper(made: Plan) -> Runs:
    inner = synthetic.near_the_paper(made)

    def outcome(cell: PlannedCell) -> Outcome:
        parameters = 1000 if dict(cell.key)["model"] == "old" else 2000
        return dataclasses.replace(inner(cell), parameters=parameters)

    return outcome


def table_of(folder: Path, made: Plan, own: Runs | None = None, reference: Runs | None = None) -> Table:
    for name, outcome in (("runs", own), ("results", reference)):
        if outcome is not None:
            synthetic.fill(folder / name, made, outcome)
    return Table(view.build(made, folder / "runs", folder / "results"))


def rows_of(found: Table) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the CSV's rows by place and quantity."""
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    return {(row["task"], row["model"], row["quantity"]): row for row in rows}


def shown(found: Table) -> dict[str, dict[str, str]]:
    """Return the grid's rows by place, each by header."""
    grid = found.grid()
    places = ("easy old", "easy new", "hard old", "hard new")
    return {place: dict(zip(grid.headers, row, strict=True)) for place, row in zip(places, grid.rows, strict=True)}


def words_of(found: Table) -> set[str]:
    return {row["verdict"] for (_, _, name), row in rows_of(found).items() if name == "error"}


def place_of(cell: PlannedCell) -> str:
    return " ".join(dict(cell.key).values())


@pytest.mark.parametrize(
    ("scale", "overrides", "factor", "word"),
    [
        ("paper", (), 1.0, REPRODUCED),
        ("paper", (), 3.0, OFF),
        ("paper", ("machine.workers=1",), 1.0, REPRODUCED),
        ("smoke", (), 3.0, REDUCED),
        ("smoke", ("training.steps=9",), 1.0, ALTERED),
        ("paper", ("training.steps=9",), 1.0, ALTERED),
        ("paper", (), None, NOT_RUN),
    ],
)
def test_every_word(tmp_path: Path, scale: str, overrides: tuple[str, ...], factor: float | None, word: str) -> None:
    made = synthetic.plan(tmp_path, scale=scale, overrides=overrides)

    def outcome(cell: PlannedCell) -> Outcome | None:
        printed = made.artifact.printed(cell.key, "error")
        if factor is None or printed is None:
            return None
        return synthetic.finished(error=printed.mean * factor * (1 + 0.001 * cell.seed), score=50.0)

    found = table_of(tmp_path, made, own=outcome)
    assert words_of(found) == {word}
    assert found.document()["comparable"] == (scale == "paper" and word != ALTERED)
    assert ("not compared with the paper" in found.markdown()) == (word == ALTERED)


def test_the_headline_is_the_first_claim(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path)
    found = table_of(tmp_path, made, own=like_the_paper(made))
    assert found.headline == found.judgements[0].sentence and f"**{found.headline}**" in found.markdown()
    assert found.document()["headline"] == found.headline
    claim, *_ = found.document()["claims"]
    assert claim["id"] == "old_above_new" and [part["label"] for part in claim["parts"]] == ["Easy", "Hard"]
    judged = found.judgements[0].estimate.interval
    assert judged is not None and claim["estimate"]["value"] == pytest.approx(judged.mean)


def test_diverged_and_failed_cells_are_shown_with_step_and_reason(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome | None:
        if place_of(cell) == "easy old":
            return Outcome(DIVERGED, note=f"loss is nan at step {40 + cell.seed}")
        if place_of(cell) == "hard old":
            return Outcome(FAILED, note="RuntimeError: it\nbroke | badly " + "with many words " * 40)
        if place_of(cell) == "easy new" and cell.seed == 1:
            return Outcome(FAILED, note="RuntimeError: it\nbroke | badly")
        return None if place_of(cell) == "hard new" else synthetic.finished(error=0.9, score=1.0)

    found = table_of(tmp_path, synthetic.plan(tmp_path), own=outcome)
    cells, notes = shown(found), found.markdown().split("## Notes")[1]
    assert "seed 0 diverged: loss is nan at step 40; seed 1 diverged" in cells["easy old"]["Error: yours"]
    assert cells["hard old"]["Error: yours"] == cells["hard old"]["Score"] == "failed [1]"
    assert cells["hard new"]["Error: yours"] == cells["hard new"]["verdict"] == NOT_RUN
    assert "* Easy, New_{50%}: seed 1 failed: RuntimeError: it broke | badly." in notes
    (note,) = [line for line in notes.splitlines() if line.startswith("* [1] ")]
    assert "seed 0 failed: RuntimeError: it broke" in note and len(note) < 400
    rows = rows_of(found)
    assert (rows["easy", "old", "error"]["own_seeds"], rows["easy", "old", "error"]["own_mean"]) == ("0", "")
    assert rows["easy", "new", "error"]["own_seeds"] == "2"


def test_columns_of_the_user_stand_where_there_is_something_of_the_users(tmp_path: Path) -> None:
    def runs(shift: dict[str, float]) -> Runs:
        return lambda cell: synthetic.finished(error=1 + 0.01 * cell.seed + shift.get(place_of(cell), 0.0), score=1.0)

    made = synthetic.plan(tmp_path)
    reference = table_of(tmp_path, made, reference=runs({}))
    assert {"Error: reference"} == {head for head in reference.grid().headers if re.search("ours|reference", head)} - {
        "Score: reference"
    }
    assert words_of(reference) == {OFF}
    both = table_of(tmp_path, made, own=runs({"easy new": 0.002, "hard new": 5.0}))
    assert {"Error: reference", "Error: yours", "as reference"} <= set(both.grid().headers)
    rows = {(task, model): row for (task, model, name), row in rows_of(both).items() if name == "error"}
    assert [row["as_reference"] for row in rows.values()] == ["equal", "agrees", "equal", "differs"]
    assert (rows["hard", "new"]["reference_mean"], rows["hard", "new"]["own_mean"]) == ("1.01", "6.01")
    alone = table_of(tmp_path / "alone", made, own=runs({}))
    assert alone.grid().headers[2:6] == ["Error: paper", "Error: yours", "verdict", "Score"]
    published = Table(view.build(made, tmp_path / "results", None))
    assert "Error: ours" in published.grid().headers
    assert not [header for header in published.grid().headers if "reference" in header]


def test_a_number_of_other_code_is_marked(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path)
    found = table_of(tmp_path, made, own=like_the_paper(made))
    changed = dataclasses.replace(found.view, changed={made.cells[0].id: {"model.py": ""}})
    cells = shown(Table(changed))
    assert cells["easy old"]["Error: yours"].endswith(" †") and "†" not in cells["easy new"]["Error: yours"]
    assert "†" in Table(changed).markdown().split("## Notes")[1] and "†" not in found.markdown()


def test_bold_marks_the_best_of_each_group_of_several_and_every_tie_as_printed(tmp_path: Path) -> None:
    error = {"easy old": 0.501, "easy new": 0.4, "hard old": 0.902, "hard new": 0.899}
    score = {"easy old": 10.0, "hard old": 30.0, "hard new": 30.14}

    def outcome(cell: PlannedCell) -> Outcome:
        own = {"score": score[place_of(cell)]} if place_of(cell) in score else {}
        return synthetic.finished(error=error[place_of(cell)], **own)

    found = shown(table_of(tmp_path, synthetic.plan(tmp_path), own=outcome))
    bold = {(place, header) for place, row in found.items() for header, text in row.items() if "\x02" in text}
    assert bold == {
        ("easy new", "Error: paper"),
        ("easy new", "Error: yours"),
        ("hard old", "Error: paper"),
        ("hard new", "Error: paper"),
        ("hard old", "Error: yours"),  # 0.902 and 0.899 are both 0.90 in two digits
        ("hard new", "Error: yours"),
        ("hard new", "Score"),
    }


def test_a_setting_that_all_rows_share_stands_below_the_table(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path)
    found = table_of(tmp_path, made, own=like_the_paper(made))
    cells = shown(found)
    assert [row["Size"] for row in cells.values()] == ["1.00K = 1,000", "2.00K = 2,000"] * 2
    assert [row["Layers"] for row in cells.values()] == ["1", "1", "2", "2"]
    same = synthetic.plan(tmp_path, ARTIFACT.replace("from: trunk.layers", "from: training.steps"))
    folded = table_of(tmp_path, same)
    assert "Layers" not in folded.grid().headers and "The same in all rows: Layers 7500" in folded.markdown()
    assert all(row["own_mean"] == 7500 for row in folded.long_rows() if row["quantity"] == "layers")


def test_a_column_without_a_number_in_the_config_is_named(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path, ARTIFACT.replace("from: trunk.layers", "from: trunk.depth"))
    with pytest.raises(UsageError, match=r"column 'Layers': the config has no number under 'trunk.depth'"):
        table_of(tmp_path, made).grid()


def test_markdown_holds_no_html_and_its_rows_have_as_many_cells_as_their_header(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)><!-- a < 2 --> |"
    text = ARTIFACT.replace("label: Hard", f"label: '{evil}'").replace("title: ", f"title: '{evil}' #", 1)
    found = table_of(tmp_path, synthetic.plan(tmp_path, text), own=lambda cell: Outcome(DIVERGED, note=evil))
    assert not re.search(r"<[A-Za-z/!?]", found.markdown()) and " < 2 -->" in found.markdown()
    blocks = [block.splitlines() for block in found.markdown().split("\n\n") if block.startswith("|")]
    assert len(blocks) == 2
    assert all(len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1 for block in blocks)


def test_latex_is_escaped_but_for_our_bold(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path, ARTIFACT.replace("label: Easy", 'label: "50% & $x_1$ #2 a}b{c~^\\\\x"'))
    text = table_of(tmp_path, made, own=like_the_paper(made)).grid().latex("a comment")
    assert text.startswith("% a comment") and "\\textbf{" in text and not set("\x02\x03") & set(text)
    assert r"50\% \& \$x\_1\$ \#2 a\}b\{c" in text


def test_a_fitted_table_is_not_called_reproduced_and_has_a_total(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path, ARTIFACT + "fitted: true\n")
    found = table_of(tmp_path, made, own=like_the_paper(made))
    assert words_of(found) == {"fitted"} and "reproduced (" not in found.markdown()
    assert found.total().startswith("4 of 4 measured numbers lie within 1 published standard deviation")
    assert table_of(tmp_path / "plain", synthetic.plan(tmp_path / "plain")).total() == ""


@pytest.mark.parametrize(
    ("tolerance", "inside", "outside"),
    [
        ({"published_stds": 1.0}, [0.5, 0.25, 0.75], [0.2499, 0.7501]),
        ({"published_stds": 2.0}, [0.0, 1.0], [-0.001, 1.001]),
        ({"relative": 0.1}, [0.46, 0.54], [0.449, 0.551]),
        ({"absolute": 0.05}, [0.46, 0.54], [0.449, 0.551]),
        ({"printed_digits": True}, [0.5, 0.4951, 0.5049], [0.494, 0.506]),
    ],
)
def test_each_rule_says_reproduced_inside_and_off_outside(tolerance, inside, outside):
    def word(value: float) -> str:
        rule, metric = Tolerance("why", **tolerance), Metric("Error", "nats", "lower", digits=2)
        return on_metric(metric, Number(0.5, 0.25), {0: value}, rule, comparable=True, altered=False)[0]

    assert set(map(word, inside)) == {REPRODUCED} and set(map(word, outside)) == {OFF}


@pytest.mark.parametrize(
    ("printed", "found", "word", "text"),
    [
        (Number(33.98), 33_985.0, REPRODUCED, "33.98K = 33,985"),  # 33.985 is a little less in binary
        (Number(33.98), 33_986.0, OFF, "33.98K, ours 33,986"),
        (Number(22.66), None, NOT_RUN, "not run"),
        (None, 22_657.0, "", "22.66K"),
    ],
)
def test_counted_columns_must_agree_with_the_printed_digits(printed, found, word, text):
    assert on_column(Column("Parameters", "parameters", "K", 1000.0, 2), printed, found) == (word, text)


@pytest.mark.parametrize(("reference", "word"), [({}, ""), ({0: 1.0}, "equal"), ({0: 1.0001}, "one seed")])
def test_one_seed_agrees_only_where_it_is_equal(reference: dict[int, float], word: str) -> None:
    assert table.agreement({0: 1.0}, reference) == table.agreement(reference, {0: 1.0}) == word
