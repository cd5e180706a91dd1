"""The paper's numbers and the floors of published figures are drawn or told, and what is not drawn says why."""

import csv
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from paper_repro.artifacts import catalogue, palette, printed_numbers
from paper_repro.artifacts.printed_numbers import PrintedNumber
from paper_repro.base.command_line import RESULTS

FIGURES = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*/*/figure.svg"))
ON_AXES = {
    "cem/table3": ("test_rmse",),
    "ebt/table5": ("boards",),
    "ebt/tableD1": ("loss",),
    "ngpt/fig2": ("speedup_1k", "speedup_4k"),
    "ngpt/fig6": ("alpha_A_small", "alpha_M_small"),
    "nrgpt/fig3": ("transition_rgpt_parallel", "transition_ff1", "transition_ff2w"),
}
"""What the paper prints of the quantities on a figure's axes, at the scale that is published."""
SHARE = PrintedNumber("EBT", 29.7, "% of boards")
LOSS = PrintedNumber("EBT", 3.21, "nats per token")


def at(comparable: bool) -> Any:
    return SimpleNamespace(plan=SimpleNamespace(scale=SimpleNamespace(comparable=comparable)))


def texts(place: str, stem: str = "figure") -> str:
    root = ElementTree.parse(RESULTS / place / f"{stem}.svg").getroot()
    return " ".join(
        " ".join("".join(node.itertext()).split()) for node in root.iter("{http://www.w3.org/2000/svg}text")
    )


DRAWINGS = sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*/*/*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
PLACED = re.compile(
    r"translate\((?P<x>-?[\d.]+) (?P<y>-?[\d.]+)\)|rotate\(-?[\d.]+ (?P<rx>-?[\d.]+) (?P<ry>-?[\d.]+)\)"
)


@pytest.mark.parametrize("place", DRAWINGS)
def test_no_text_stands_outside_of_its_figure(place: str) -> None:
    root = ElementTree.parse(RESULTS / place).getroot()
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    count = 0
    for node in root.iter():
        found = PLACED.match(node.get("transform", ""))
        if not found or not (node.tag == f"{SVG}text" or node.find(f"{SVG}text") is not None):
            continue
        x, y = (float(found[name] or found[f"r{name}"]) for name in "xy")
        assert -1 <= x <= width and 0 <= y <= height + 1, "".join(node.itertext())
        count += 1
    assert count


def rows(place: str) -> list[dict[str, str]]:
    with (RESULTS / place / "figure.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_number_of_another_unit_is_told_and_not_drawn() -> None:
    assert printed_numbers.drawn(at(False), [SHARE, LOSS]) == [SHARE]
    assert printed_numbers.drawn(at(True), [SHARE, LOSS]) == [SHARE, LOSS]
    said = printed_numbers.sentence(at(False), [SHARE, LOSS])
    assert (
        "of its own scale" in said and "not drawn, for nats per token of other data are another unit: EBT 3.21" in said
    )
    assert printed_numbers.sentence(at(True), [LOSS]) == "Diamonds and dash-dotted lines: the paper's numbers."
    assert printed_numbers.sentence(at(False), []) == ""


def test_lines_and_points_stand_at_their_numbers() -> None:
    canvas = Canvas()
    FigureCanvasAgg(canvas)
    left, right = canvas.subplots(1, 2)
    points = [PrintedNumber("CEM", 0.5, "%", 1, at=1.0, std=0.1), PrintedNumber("CEM", 0.25, "%", 1, at=2.0, std=0.2)]
    upright = PrintedNumber("FF1", 24000.0, "parameters", 1, upright=True, color=palette.BLUE)
    printed_numbers.draw([left, right], [SHARE, upright, *points])
    across, mark = left.lines
    assert set(across.get_ydata()) == {29.7} == set(mark.get_ydata()) and mark.get_marker() == "D"
    assert [text.get_text() for text in left.texts] == ["EBT"], "no model's colour says whose it is"
    assert set(right.lines[0].get_xdata()) == {24000.0} and not right.texts
    drawn = [tuple((x, round(float(y), 6)) for x, y in zip(*line.get_data(), strict=True)) for line in right.lines]
    assert ((1.0, 0.5), (2.0, 0.25)) in drawn and ((1.0, 0.4), (2.0, 0.05)) in drawn


def printed(name: str) -> list[float]:
    artifact, found = catalogue.load(name), list[float]()
    for quantity in ON_AXES[name]:
        if quantity in artifact.summary:
            number = artifact.summary[quantity].published
            assert number is not None
            found.append(number)
        for row in artifact.published.rows if artifact.published else ():
            if (one := row.values.get(quantity)) is not None:
                found += [value for _, value in one.per_seed] or [one.mean]
    return found


def printed_elsewhere(name: str) -> list[float]:
    """The scaling factors in figure 6 of nGPT, which Table 5 prints for the default."""
    if name != "ngpt/fig6":
        return []
    published = catalogue.load("ngpt/table5").published
    assert published is not None
    (default,) = (row for row in published.rows if dict(row.at) == {"setting": "default"})
    return [default.values[f"mean_{vector}"].mean for vector in ("s_u", "s_nu", "s_qk", "s_z")]


@pytest.mark.parametrize("name", ON_AXES)
def test_every_number_that_the_paper_prints_is_in_the_figure(name: str) -> None:
    (place,) = (place for place in FIGURES if place.startswith(f"{name}/"))
    shown = [(row["paper"], float(row["paper_value"])) for row in rows(place) if row["paper"]]
    if name == "ngpt/fig2":  # a speedup stands as two points of one loss; its label tells it
        assert {f"speedup {number:g}" for number in printed(name)} == {label for label, _ in shown}
    else:
        assert sorted(value for _, value in shown) == sorted([*printed(name), *printed_elsewhere(name)])
    said = {
        "ebt/tableD1": " Diamonds: the paper's numbers",  # they stand at a point each
        "ngpt/fig2": " Diamonds: where nGPT would reach the loss of GPT's longest run by the paper's speedup",
    }
    usual = " Diamonds and dash-dotted lines: the paper's numbers"
    assert texts(place).split().count("paper") >= 1 and said.get(name, usual) in texts(place)


def test_no_figure_of_printed_numbers_is_left_out() -> None:
    artifacts = {place.rpartition("/")[0]: catalogue.load(place.rpartition("/")[0]) for place in FIGURES}
    printing = {
        name
        for name, artifact in artifacts.items()
        if artifact.published or any(item.published is not None for item in artifact.summary.values())
    }
    assert printing == set(ON_AXES)


@pytest.mark.parametrize("place", FIGURES)
def test_a_figure_says_its_scale_its_data_what_its_marks_are_and_its_floors(place: str) -> None:
    name, _, scale = place.rpartition("/")
    said = texts(place)
    assert f"{name}, scale {scale}; " in said and ("seed" in said or scale == "exact")
    for floor in catalogue.load(name).floors.values():
        measured = scale in ("cpu",) and floor.label in (RESULTS / place / "table.md").read_text()
        assert floor.label in said or not measured, f"the floor '{floor.label}' is neither drawn nor told"


@pytest.mark.parametrize("name", ["ngpt/fig5", "ngpt/fig6"])
def test_many_panels_are_split_into_a_figure_and_an_appendix(name: str) -> None:
    panels = []
    for stem in ("figure", "figure_appendix"):
        root = ElementTree.parse(RESULTS / name / "cpu" / f"{stem}.svg").getroot()
        panels.append(sum(str(node.get("id", "")).startswith("axes_") for node in root.iter()))
        assert (RESULTS / name / "cpu" / f"{stem}.png").is_file() and (RESULTS / name / "cpu" / f"{stem}.csv").is_file()
    assert panels[0] <= 8 < panels[1] <= 24


def test_no_published_figure_has_more_than_a_dozen_panels() -> None:
    for place in FIGURES:
        root = ElementTree.parse(Path(RESULTS / place / "figure.svg")).getroot()
        assert sum(str(node.get("id", "")).startswith("axes_") for node in root.iter()) <= 12, place
