"""The numbers behind the marks of a figure: every panel that shows numbers has them, whatever its axes are."""

import re
from pathlib import Path

import pytest

from paper_repro.artifacts import ties
from paper_repro.base.command_line import RESULTS
from paper_repro.report import hover
from paper_repro.report.drawing import Element, read, words

FIGURES = sorted(RESULTS.glob("*/*/*/figure*.svg"))
WITHOUT_NUMBERS = {"original", "masked"}
"""Rows of pictures that no number belongs to."""
SCALE_OF_COLOURS = {"energy", "token"}
"""What bars of colours say; the numbers stand at what has the colour."""


def panels(root: Element) -> list[Element]:
    return [node for node in root.iter("g") if str(node.get("id", "")).startswith("axes_")]


def named(path: Path) -> str:
    return path.relative_to(RESULTS).with_suffix("").as_posix()


@pytest.mark.parametrize("path", FIGURES, ids=named)
def test_every_panel_of_a_published_figure_has_its_numbers(path: Path) -> None:
    root = read(path.read_bytes())
    found = hover.marks(root, path.with_suffix(".csv").read_bytes())
    assert found and len(found) <= hover.MOST_MARKS
    for panel in panels(root):
        box = hover._box(panel) or hover._title_box(panel)
        has = box is not None and any(box.holds(mark.x, mark.y) for mark in found)
        label = words(panel)
        without = label in WITHOUT_NUMBERS or re.sub(r"[\d -]+", "", label) in SCALE_OF_COLOURS
        blank = not label and not list(panel.iter("image"))  # a place of the grid that nothing stands in
        assert has != (without or blank), f"{panel.get('id')}: {label[:60]}"


@pytest.mark.parametrize(
    "name", ["cet/fig2", "cet/fig4", "cet/fig5", "ebt/fig8", "ebt/figB2", "ebt/figB3", "nrgpt/fig5"]
)
def test_a_picture_tells_the_row_that_it_was_drawn_from(name: str) -> None:
    folder = RESULTS / name / "cpu"
    content = (folder / "figure.csv").read_bytes()
    root, rows = read((folder / "figure.svg").read_bytes()), hover.Rows(content)
    of_panels = [tie for panel in panels(root) if (tie := ties.read(panel.attrib)) is not None]
    shown = [row for tie in of_panels for row in tie.rows if row is not None]
    told = [mark.text for mark in hover.marks(root, content) if mark.reach]
    assert shown and told == [hover._row(rows.rows[row]) for row in shown]


def test_below_a_picture_stands_the_error_of_its_row() -> None:
    """The tie and what is printed under each face agree."""
    folder = RESULTS / "cet" / "fig2" / "cpu"
    root, rows = read((folder / "figure.svg").read_bytes()), hover.Rows((folder / "figure.csv").read_bytes())
    for panel in panels(root):
        if (tie := ties.read(panel.attrib)) is not None:
            errors = re.findall(r"\b0\.\d{3}\b", words(panel))
            assert [f"{rows.numbers[row or 0]['error']:.3f}" for row in tie.rows] == errors and len(errors) == 16


@pytest.mark.parametrize(
    ("places", "columns", "name"),
    [
        ([0, 1, 2, 3], 2, "axes_of_rows_2_0-3"),
        ([None, 4, 5, 7], 4, "axes_of_rows_4_x.4-5.7"),
        ([3, 2], 2, "axes_of_rows_2_3.2"),
        ([None], 1, "axes_of_rows_1_x"),
    ],
)
def test_a_tie_is_read_as_it_was_written(places: list[int | None], columns: int, name: str) -> None:
    assert ties.name(places, columns) == name
    assert ties.read({"id": name}) == ties.Tie(columns, tuple(places))


@pytest.mark.parametrize(
    "name", ["axes_1", "", "axes_of_rows_0_1", "axes_of_rows_1_", "axes_of_rows_1_a", "axes_of_rows_1_0-99999999999"]
)
def test_an_id_that_ties_nothing_is_none(name: str) -> None:
    assert ties.read({"id": name}) is None


def svg(inside: str, ticks: dict[str, float], name: str = "axes_1") -> bytes:
    """A panel of 100 by 100, even from 0 to 10 across; ``ticks`` are labels of the other axis with their heights."""
    marks = "".join(
        f'<g id="ytick_{number}"><use x="0" y="{at}"/>{label}</g>' for number, (label, at) in enumerate(ticks.items())
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100"><g id="{name}">
    <g id="patch_1"><path d="M 0 0 L 100 0 L 100 100 L 0 100 z"/></g>
    <g id="matplotlib.axis_1"><g id="xtick_1"><use x="0" y="100"/><text>0</text></g>
    <g id="xtick_2"><use x="100" y="100"/><text>10</text></g></g>
    <g id="matplotlib.axis_2">{marks}</g>{inside}</g></svg>""".encode()


def power(sign: str, exponent: str) -> str:
    """A power of ten as matplotlib sets it: each letter by itself."""
    spans = [f'<tspan y="-1">{letter}</tspan>' for letter in f"{sign}10"]
    spans += [f'<tspan y="-4">{letter}</tspan>' for letter in exponent]
    return f"<text>{''.join(spans)}</text>"


PLAIN = {"<text>0</text>": 100.0, "<text>10</text>": 0.0}
BOTH_SIGNS = {
    power("−", "−1"): 100,
    power("−", "−2"): 75,
    "<text>0</text>": 50,
    power("", "−2"): 25,
    power("", "−1"): 0,
}


@pytest.mark.parametrize(
    ("height", "value"), [(0, "0.1"), (12.5, "0.03162"), (37.5, "0.005"), (50, "0"), (75, "-0.01")]
)
def test_an_axis_that_is_logarithmic_on_both_sides_of_zero_is_read(height: float, value: str) -> None:
    root = read(svg(f'<g id="line2d_9"><use x="50" y="{height}"/></g>', BOTH_SIGNS))
    (mark,) = hover.marks(root, b"")
    assert mark.text == f"across: 5\nvalue: {value}"


def test_labels_of_both_signs_that_fall_and_rise_are_no_axis() -> None:
    root = read(
        svg('<g id="line2d_9"><use x="50" y="0"/></g>', dict(zip(BOTH_SIGNS, (0, 75, 50, 25, 100), strict=True)))
    )
    (mark,) = hover.marks(root, b"")
    assert mark.text == "across: 5\nvalue: -1e-1", "the nearest label"


def test_a_step_of_a_histogram_tells_its_bin() -> None:
    outline = "M 0 100 L 0 60 L 50 60 L 50 20 L 100 20 L 100 100"
    patch = f'<g id="patch_2"><path d="{outline}" clip-path="url(#a)" style="fill: none; stroke: #222222"/></g>'
    found = hover.marks(read(svg(patch, PLAIN)), b"low,high,value\n0,5,4\n5,10,8\n0,10,4\n")
    assert [(mark.x, mark.y, mark.text) for mark in found] == [
        (25.0, 60.0, "low: 0\nhigh: 5\nvalue: 4"),
        (75.0, 20.0, "low: 5\nhigh: 10\nvalue: 8"),
    ]
    slanted = "M 0 100 L 20 60 L 50 40 L 50 20 L 100 20"
    patch = f'<g id="patch_2"><path d="{slanted}" clip-path="url(#a)" style="fill: none"/></g>'
    assert hover.marks(read(svg(patch, PLAIN)), b"") == []


def test_panels_share_the_marks_that_a_page_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hover, "MOST_MARKS", 20)
    dots = "".join(f'<g id="line2d_{x}"><use x="{x}" y="50"/></g>' for x in range(0, 100, 5))
    one = svg(dots, PLAIN).decode()
    panel = one[one.index("<g id") : one.index("</svg>")]
    both = one.replace("</svg>", panel.replace('"50"', '"20"').replace("axes_1", "axes_2") + "</svg>")
    found = hover.marks(read(both.encode()), b"")
    assert len(found) == 20 and sum(mark.y == 20 for mark in found) == 10


def test_a_tied_panel_tells_rows_line_by_line_and_no_more_than_there_are() -> None:
    root = read(svg("", PLAIN, "axes_of_rows_2_0.x.1.9"))
    found = hover.marks(root, b"image,error\n1,0.5\n2,0.25\n")
    assert [(mark.x, mark.y, mark.text) for mark in found] == [
        (25.0, 25.0, "image: 1\nerror: 0.5"),
        (25.0, 75.0, "image: 2\nerror: 0.25"),
    ]
    assert found[0].reach == pytest.approx(0.5 * (50**2 + 50**2) ** 0.5)
