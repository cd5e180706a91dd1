import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from PIL import Image

from paper_repro.artifacts import catalogue, figures, printed_numbers, render, views
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.floor_marks import FloorLine, draw_floors
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.artifacts.views import View
from paper_repro.base.errors import UsageError
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.tasks import Outcome
from paper_repro.tests.support import synthetic

FILES = ["figure.csv", "figure.png", "figure.svg"]


class Points(figures.Figure):
    size = (2.0, 1.5)

    def rows(self) -> list[Row]:
        return [
            {**dict(key), "error": self.view.samples("error", dict(key)).get(0)}
            for key, point in self.view.points.items()
        ]

    def draw(self, canvas: Any, rows: Sequence[Row]) -> None:
        axes = canvas.add_subplot()
        axes.plot([row["error"] for row in rows], "o", label="a & <b>")
        axes.legend()


@pytest.fixture
def view(tmp_path: Path) -> View:
    plan = synthetic.plan(tmp_path)
    synthetic.fill(tmp_path / "runs", plan, synthetic.near_the_paper(plan))
    return views.build(plan, tmp_path / "runs", None)


def contents(paths: Sequence[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def test_drawing_twice_gives_the_same_bytes(view: View, tmp_path: Path) -> None:
    first, second = Points(view).write(tmp_path / "one"), Points(view).write(tmp_path / "two")
    assert [path.name for path in first] == FILES
    assert contents(first) == contents(second)


def test_a_users_own_style_does_not_change_the_bytes_and_is_left_alone(view: View, tmp_path: Path) -> None:
    plain = contents(Points(view).write(tmp_path / "one"))
    with rc_context({"font.size": 30, "lines.markersize": 20, "savefig.dpi": 7, "figure.facecolor": "red"}):
        assert contents(Points(view).write(tmp_path / "two")) == plain
        assert rcParams["font.size"] == 30


def test_the_files_are_what_their_names_say(view: View, tmp_path: Path) -> None:
    found = contents(Points(view).write(tmp_path))
    assert Image.open(io.BytesIO(found["figure.png"])).size == (320, 281)  # the footer's two lines below
    root = ElementTree.fromstring(found["figure.svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.attrib["width"] == "144pt"
    assert "a & <b>" in "".join(root.itertext()), "text stays text"
    rows = list(csv.DictReader(io.StringIO(found["figure.csv"].decode())))
    assert len(rows) == 4 and rows[0].keys() == {"task", "model", "error"}


def test_neither_clock_nor_program_is_written_into_a_figure(view: View, tmp_path: Path) -> None:
    found = contents(Points(view).write(tmp_path))
    assert b"<dc:date>" not in found["figure.svg"] and b"Matplotlib v" not in found["figure.svg"]
    assert not Image.open(io.BytesIO(found["figure.png"])).text  # type: ignore[attr-defined]


def test_a_figure_without_rows_is_still_drawn(view: View, tmp_path: Path) -> None:
    class Empty(Points):
        def rows(self) -> list[Row]:
            return []

    found = contents(Empty(view).write(tmp_path))
    assert found["figure.csv"] == b"" and found["figure.png"].startswith(b"\x89PNG")


COMPANION = """
from paper_repro.artifacts import figures, tables

class One(figures.Figure):
    size = (2.0, 1.5)
    def rows(self):
        return [{"points": len(self.view.points)}]
    def draw(self, canvas, rows):
        canvas.add_subplot()

class Own(tables.Table):
    def remarks(self):
        return ["a remark of its own"]
"""


def test_the_file_beside_the_artifact_gives_its_table_and_its_figure(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path)
    (tmp_path / "made" / "up.py").write_text(COMPANION)
    _, written = render.render(plan, tmp_path / "runs", None)
    assert [path.name for path in written] == ["table.md", "table.csv", "table.tex", "table.json", *FILES]
    assert "a remark of its own" in written[0].read_text()
    assert (written[0].parent / "figure.csv").read_text() == "points\n4\n"


def test_two_figures_in_one_file_are_refused(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path)
    (tmp_path / "made" / "up.py").write_text(COMPANION + "\nclass Two(One):\n    pass\n")
    with pytest.raises(UsageError, match=r"up\.py: more than one Figure: One, Two"):
        render.render(plan, tmp_path / "runs", None)


def drawn(name: str, folder: Path, reference: bool) -> tuple[Any, list[Row], Any]:
    """A shipped figure with its rows and the canvas it drew them on."""
    plan = plans.make(catalogue.load(name))
    for root in ("runs", "results"):
        synthetic.fill(folder / root, plan, synthetic.near_the_paper(plan, 0.05))
    view = views.build(plan, folder / "runs", folder / "results" if reference else None)
    figure: Any = render.figure_of(view)
    canvas = Canvas(figsize=figure.size)
    FigureCanvasAgg(canvas)
    rows = figure.rows()
    figure.draw(canvas, rows)
    printed_numbers.draw(canvas.axes, figure.printed(rows))
    return figure, rows, canvas


@pytest.mark.parametrize("reference", [True, False])
def test_table_3_draws_every_number_inside_its_axes(tmp_path: Path, reference: bool) -> None:
    _, rows, canvas = drawn("cem/table3", tmp_path, reference)
    sources = {"paper", "reference", "yours"} if reference else {"paper", "ours"}
    assert {row["source"] for row in rows} == sources
    assert len(rows) == 5 * 6 * len(sources)
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    assert len(canvas.axes) == len(kernels) == 5
    for kernel, axes in zip(kernels, canvas.axes, strict=True):
        own = [row for row in rows if row["kernel"] == kernel]
        low, high = axes.get_ylim()
        assert low == 0.0
        for row in own:
            # The models without inner steps are flat lines and have no bars.
            spread = row["std"] if row["model"].startswith("t") else 0.0
            assert row["mean"] + spread <= high, (kernel, row)
        seen = {round(float(value), 8) for line in axes.get_lines() for value in line.get_ydata()}
        assert {round(row["mean"], 8) for row in own} <= seen


def test_table_d1_draws_every_printed_loss(tmp_path: Path) -> None:
    def outcome(cell: PlannedCell) -> Outcome:
        place = dict(cell.key)
        size = list(plan.artifact.axes["size"].values).index(place["size"])
        flops = 10.0 ** (15 + size + (place["model"] == "ebt"))
        return synthetic.finished(parameters=1e6, exact_parameters=1e6, flops=flops)

    plan = plans.make(catalogue.load("ebt/tableD1"))
    synthetic.fill(tmp_path, plan, outcome)
    view = views.build(plan, tmp_path, None)
    figure: Any = render.figure_of(view)
    rows, canvas = figure.rows(), Canvas()
    FigureCanvasAgg(canvas)
    figure.draw(canvas, rows)
    printed_numbers.draw(canvas.axes, figure.printed(rows))
    printed = [
        value
        for key in plan.artifact.points()
        if (number := plan.artifact.printed(key, "loss")) is not None
        for _, value in number.per_seed
    ]
    assert sorted(row["loss"] for row in rows) == sorted(printed) and len(printed) == 2 * (3 * 3 + 2)
    axes: Any = canvas.axes[0]
    seen = {round(float(value), 6) for line in axes.get_lines() for value in line.get_ydata()}
    assert set(printed) <= seen


def test_a_figure_without_records_shows_the_paper_alone(tmp_path: Path) -> None:
    plan = plans.make(catalogue.load("cem/table3"))
    _, written = render.render(plan, tmp_path / "runs", tmp_path / "results")
    rows = list(csv.DictReader((written[0].parent / "figure.csv").open()))
    assert {row["source"] for row in rows if not row["paper"]} == {"paper"} and len(rows) == 2 * 5 * 6
    # Records of nothing: the curves of EBT's Table D.1 need the FLOPs, and without them there is nothing to draw.
    _, written = render.render(plans.make(catalogue.load("ebt/tableD1")), tmp_path / "runs", tmp_path / "results")
    assert "not run" in written[0].read_text()


def test_labels_of_floors_do_not_lie_on_one_another() -> None:
    lines = [
        FloorLine("Bigram count", 4.180, 0),
        FloorLine("Bigram count", 4.183, 0),
        FloorLine("Unigram count", 4.181, 0),
        FloorLine("Bigram count", 4.9, 0),
        FloorLine("Bigram count", 4.5, 1),
    ]
    canvas = Canvas(figsize=(7.0, 4.0), dpi=figures.DOTS_PER_INCH, layout="constrained")
    left, right = canvas.subplots(1, 2)
    for axes in (left, right):
        axes.plot([0, 1], [3.0, 5.0])
    draw_floors([left, right], lines)
    canvas.draw_without_rendering()
    assert [label.get_text() for label in right.texts] == ["Bigram count"]
    assert [label.get_text() for label in left.texts] == ["Bigram count 4.18", "Unigram count 4.18", "Bigram count"]
    boxes = [label.get_window_extent() for label in left.texts]
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in itertools.pairwise(boxes))
    assert len(left.lines) == 1 + 4 and len(right.lines) == 1 + 1


def test_a_floors_name_keeps_off_upright_lines_and_off_the_names_at_the_edge() -> None:
    canvas = Canvas(figsize=(12.0, 4.0), dpi=figures.DOTS_PER_INCH)
    free, crossed, between, edge = canvas.subplots(1, 4)
    for axes in (free, crossed, between, edge):
        axes.plot([0, 10], [3.0, 3.1])
        axes.set(xlim=(0, 10), ylim=(0, 5))
    crossed.axvline(9.5)
    for place in (1.0, 9.5):
        between.axvline(place)
    draw_floors([free, crossed, between], [FloorLine("Bigram count", 4.5)])
    draw_floors([edge], [FloorLine("Linear fit", 4.8), FloorLine("Mean", 9.0)])
    assert [axes.texts[0].get_ha() for axes in (free, crossed, between)] == ["right", "left", "center"]
    names = edge.texts
    assert {text.get_text() for text in names} == {"Mean 9, above", "Linear fit"}
    assert not names[0].get_window_extent().overlaps(names[1].get_window_extent())
    heights = [edge.transData.transform((0.0, 4.8))[1], *(text.get_window_extent().y0 for text in names[::-1])]
    assert heights == sorted(heights), "the line, its name above it, and the name at the edge above both"


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("away", [0.5, 0.99, 1.01, 2.8, 40.0])
def test_floors_leave_the_data_four_tenths_of_a_panel(scale: str, away: float) -> None:
    low, high = 2.0, 3.0
    floor = high + away * (high - low) if scale == "linear" else high * (high / low) ** away
    canvas = Canvas(figsize=(5.0, 3.0), dpi=figures.DOTS_PER_INCH)
    axes = canvas.subplots()
    axes.plot([0, 1], [low, high])
    axes.set_yscale(scale)
    draw_floors([axes], [FloorLine("Bigram count", floor), FloorLine("Unigram count", floor)])
    inches = axes.transAxes.inverted().transform(axes.transData.transform([(0.0, low), (0.0, high)]))[:, 1]
    assert inches[1] - inches[0] >= 0.4
    assert (len(axes.lines) > 1) == (away < 1.0), "a line where the floor is near, a number where it is not"
    assert all(text.get_text().endswith("above") == (away > 1.0) for text in axes.texts)


def test_panels_that_share_an_axis_make_room_once_and_keep_their_lines_inside() -> None:
    canvas = Canvas(figsize=(7.0, 3.0), dpi=figures.DOTS_PER_INCH)
    left, right = canvas.subplots(1, 2, sharey=True)
    for axes in (left, right):
        axes.plot([0, 1], [2.0, 3.0])
    draw_floors([left, right], [FloorLine("Unigram count", 9.0), FloorLine("Bigram count", 3.9, 1)])
    assert [text.get_text() for text in left.texts] == ["Unigram count 9, above"]
    assert [text.get_text() for text in right.texts] == ["Unigram count 9, above", "Bigram count"]
    assert 3.9 < right.get_ylim()[1] == left.get_ylim()[1] < 4.5


def test_the_line_below_a_figure_names_dash_dotted_lines_where_there_are_some(view: View) -> None:
    point = PrintedNumber("GPT", 0.5, "%", at=1.0, tied=False)
    for numbers, lines in (
        ([point], False),
        ([point, replace(point, tied=True)], True),
        ([PrintedNumber("", 1.0, "%")], True),
    ):
        assert printed_numbers.sentence(view, numbers).startswith("Diamonds and" if lines else "Diamonds:")
        entry: Any = printed_numbers.legend_entry(numbers)
        assert (entry.get_linestyle() == printed_numbers.LINE) == lines


def test_a_panel_without_a_floor_keeps_its_limits() -> None:
    canvas = Canvas()
    FigureCanvasAgg(canvas)
    texts, losses = canvas.subplots(1, 2)
    texts.text(0, 1, "what a model wrote")
    losses.plot([0, 1], [3.0, 4.0])
    draw_floors([texts, losses], [FloorLine("Bigram count", 3.9, 1)])
    assert texts.get_ylim() == (0.0, 1.0)
