"""Figures: the same files twice, marks and rows that agree, baselines, and the paper's numbers."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure as Canvas
from PIL import Image

from paper_repro.tables import figure, plots, view
from paper_repro.tables.figure import BaselineLine, Figure, PrintedNumber, Row
from paper_repro.tables.view import View
from paper_repro.tests.support import synthetic

FILES = ["figure.csv", "figure.png", "figure.svg"]
SVG = "{http://www.w3.org/2000/svg}"
PAPER = PrintedNumber("New", 0.4, "nats", at=1.0)


class Points(Figure):
    """Every run of the two models, with a trivial baseline and a number of the paper."""

    size = (3.0, 2.0)

    def rows(self) -> list[Row]:
        found = [(dict(key), seed) for key in self.view.points for seed in self.view.samples("error", dict(key))]
        return [
            {**place, "seed": seed, "error": round(self.view.samples("error", place)[seed], 8)} for place, seed in found
        ]

    def draw(self, canvas: Any, rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        for model in ("old", "new"):
            points = [(float(row["task"] == "hard"), row["error"]) for row in rows if row["model"] == model]
            plots.seeds_and_mean(axes, points, plots.BLUE, f"a & <{model}>")

    def baselines(self) -> list[BaselineLine]:
        return [BaselineLine("Chance", 0.6)]

    def printed(self, rows: Sequence[Row]) -> list[PrintedNumber]:
        return [PAPER]


def view_at(folder: Path, scale: str = "paper") -> View:
    made = synthetic.plan(folder, scale=scale)
    synthetic.fill(folder / "runs", made, synthetic.near_the_paper(made))
    return view.build(made, folder / "runs", None)


def contents(paths: Sequence[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def texts(svg: bytes) -> str:
    return " ".join("".join(node.itertext()) for node in ElementTree.fromstring(svg).iter(f"{SVG}text"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Points, dict[str, bytes]]:
    """A figure at the paper's scale and its files."""
    folder = tmp_path_factory.mktemp("figure")
    found = Points(view_at(folder), "A headline")
    return found, contents(found.write(folder / "drawn"))


def test_drawing_twice_gives_the_same_bytes_whatever_the_users_style(drawn: Any, tmp_path: Path) -> None:
    found, files = drawn
    with rc_context({"font.size": 30, "lines.markersize": 20, "savefig.dpi": 7, "figure.facecolor": "red"}):
        assert contents(found.write(tmp_path)) == files and [*files] == FILES
        assert rcParams["font.size"] == 30


def test_the_files_are_what_their_names_say_and_tell_neither_clock_nor_program(drawn: Any) -> None:
    found, files = drawn
    image: Any = Image.open(io.BytesIO(files["figure.png"]))
    assert image.size[0] == 3 * figure.DOTS_PER_INCH and image.size[1] > 2 * figure.DOTS_PER_INCH and not image.text
    assert b"<dc:date>" not in files["figure.svg"] and b"Matplotlib v" not in files["figure.svg"]
    said = texts(files["figure.svg"])
    for part in ("A headline", "made/up, scale paper", "3 seeds", "a & <old>", "Chance", "paper"):
        assert part in said, part
    *own, baseline, paper = csv.DictReader(io.StringIO(files["figure.csv"].decode()))
    wanted = [{name: str(value) for name, value in row.items()} for row in found.rows()]
    assert all(row.items() <= there.items() for row, there in zip(wanted, own, strict=True))
    assert (baseline["baseline"], baseline["baseline_value"], baseline["error"]) == ("Chance", "0.6", "")
    assert (paper["paper"], paper["paper_value"], paper["error"]) == ("New", "0.4", "")


def test_the_description_of_the_svg_has_every_mark_with_its_label_place_and_values(drawn: Any) -> None:
    found, files = drawn
    root = ElementTree.fromstring(files["figure.svg"])
    (node,) = root.iter("{http://purl.org/dc/elements/1.1/}description")
    described = json.loads(node.text or "")
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    assert [described["width"], described["height"]] == pytest.approx([width, height], abs=0.1)
    assert all(0 <= x <= width and 0 <= y <= height for x, y, *_ in described["marks"])
    seen = {(float(x), y) for _, _, _, x, y in described["marks"]}
    assert {(float(row["task"] == "hard"), f"{row['error']:.4g}") for row in found.rows()} <= seen
    means = sorted((label, x) for _, _, label, x, _ in described["marks"] if label)
    assert means == [(f"a & <{model}>", x) for model in ("new", "old") for x in "01"]


def test_the_papers_numbers_of_other_data_are_told_and_not_drawn(tmp_path: Path) -> None:
    made = Points(view_at(tmp_path, "smoke"))
    found = contents(made.write(tmp_path))
    assert "in nats of its own data" in texts(found["figure.svg"]) and b"New,0.4" in found["figure.csv"]
    share = PrintedNumber("EBT", 29.7, "% of boards")
    assert figure.drawable(made.view, [share, PAPER]) == [share]
    assert figure.drawable(view_at(tmp_path / "paper"), [share, PAPER]) == [share, PAPER]


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("away", [0.5, 0.99, 1.01, 40.0])
def test_a_far_baseline_is_a_number_at_the_edge_and_flattens_nothing(scale: str, away: float) -> None:
    low, high = 2.0, 3.0
    value = high + away * (high - low) if scale == "linear" else high * (high / low) ** away
    axes = Canvas(figsize=(5.0, 3.0), dpi=figure.DOTS_PER_INCH).subplots()
    axes.plot([0, 1], [low, high])
    axes.set_yscale(scale)
    figure._draw_baselines([axes], [BaselineLine("Bigram count", value)])
    inches = axes.transAxes.inverted().transform(axes.transData.transform([(0.0, low), (0.0, high)]))[:, 1]
    assert inches[1] - inches[0] >= 0.4
    assert (len(axes.lines) > 1) == (away < 1.0) and axes.texts[0].get_text().endswith("above") == (away > 1.0)
