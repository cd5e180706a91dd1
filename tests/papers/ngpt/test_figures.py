"""A point far above the others is a number at the upper edge of figure 7."""

import math
from collections.abc import Mapping

from matplotlib.figure import Figure as Canvas

from paper_repro.papers.ngpt.fig7 import Figure7
from paper_repro.tests.support import made_up
from paper_repro.tests.support.made_up import Made


def losses(place: Mapping[str, str], seed: int) -> dict[str, float]:
    """Return losses that the highest rate raises by 10 after the longest training."""
    far = place["budget"] == "f1" and place["lr"] == "2e-2"
    loss = 3.0 + 0.2 * (place["model"] == "gpt") + 0.1 * seed + 0.05 * (place["lr"] == "5e-3") + 10.0 * far
    return {"val_loss": loss, "test_loss": loss}


def test_figure_7_has_every_run_and_draws_no_line_to_a_point_outside_its_panel() -> None:
    figure = Figure7(made_up.view("ngpt/fig7", Made(losses, noise=0.0, seeds=(0, 1, 2))))
    rows = figure.rows()
    assert sum(row["budget"] == "f1" and row["model"] == "ngpt" for row in rows) == 3 * 3
    canvas = Canvas()
    figure.draw(canvas, rows)
    drawn = 0
    for axes in canvas.axes:
        tops = [loss for curve in axes.lines for loss in curve.get_ydata() if math.isfinite(loss)]
        assert all(loss <= axes.get_ylim()[1] for loss in tops)
        drawn += len(tops)
    means = {(row["context"], row["budget"], row["model"], row["rate"]) for row in rows}
    far = {mean for mean in means if mean[1:] == ("f1", "ngpt", 0.02)}
    assert len(far) == 1 and drawn == len(means - far)
