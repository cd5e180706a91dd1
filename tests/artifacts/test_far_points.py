"""One point far above the others flattens nothing: its number stands at the edge of its panel."""

from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from paper_repro.artifacts import far_points, figures, palette
from paper_repro.artifacts.floor_marks import FloorLine, draw_floors

NEAR = [(1.0, 2.60), (1.0, 2.62), (2.0, 2.55), (3.0, 2.58), (4.0, 2.65)]


def panel(points: list[tuple[float, float]]) -> Any:
    canvas = Canvas(figsize=(5.0, 3.0), dpi=figures.DOTS_PER_INCH)
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    figures.seeds_and_mean(axes, points, palette.BLUE)
    far_points.number_far_points(axes, far_points.gathered(points, palette.BLUE))
    return axes


def share(axes: Any, low: float, high: float) -> float:
    """What two heights take of a panel."""
    ends = axes.transAxes.inverted().transform(axes.transData.transform([(0.0, low), (0.0, high)]))
    return float(ends[1, 1] - ends[0, 1])


def test_a_far_mean_is_a_number_at_the_edge_and_the_rest_fills_the_panel() -> None:
    axes = panel([*NEAR, (5.0, 3.60), (5.0, 3.62)])
    (text,) = axes.texts
    assert text.get_text() == "3.61, above" and text.get_color() == palette.BLUE
    assert text.xy == (5.0, 1.0) and text.get_ha() == "right"
    assert axes.get_window_extent().padded(2).containsx(text.get_window_extent().x1)
    assert share(axes, 2.55, 2.65) > 0.7 and axes.get_ylim()[1] < 3.0


def test_its_number_and_that_of_a_floor_do_not_lie_on_one_another() -> None:
    axes = panel([*NEAR, (5.0, 3.61)])
    draw_floors([axes], [FloorLine("Bigram count", 3.607), FloorLine("Unigram count", 2.7)])
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert list(boxes) == ["3.61, above", "Bigram count 3.61, above", "Unigram count"]
    assert not boxes["3.61, above"].overlaps(boxes["Bigram count 3.61, above"])
    assert share(axes, 2.55, 2.65) > 0.4


@pytest.mark.parametrize(
    ("points", "far"),
    [
        ([*NEAR, (5.0, 2.74)], []),  # less than the others' span above them
        ([*NEAR, (5.0, 2.76)], [5.0]),
        ([*NEAR, (5.0, 2.2)], []),  # far below
        ([*NEAR, (5.0, 3.61), (6.0, 3.62)], []),  # two of six: no single points, but half of a curve
        ([*NEAR, *((place, 2.6) for place in (7.0, 8.0)), (5.0, 3.61), (6.0, 3.62)], [5.0, 6.0]),
        ([(1.0, 2.0), (2.0, 9.0)], []),
        ([], []),
    ],
)
def test_few_means_far_above_all_values_of_the_others_are_far(
    points: list[tuple[float, float]], far: list[float]
) -> None:
    found = far_points.far_above(far_points.gathered(points, palette.BLUE))
    assert [one.place for one in found] == far
    axes = panel(points)
    assert len(axes.texts) == len(far)
    for _, value in (point for point in points if point[0] not in far):
        assert axes.get_ylim()[0] < value < axes.get_ylim()[1], "what is not far is seen"
