"""EBT: losses against the learning rate and the step size alpha, our check that their grids do not decide."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.brackets import best_is_inside
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import (
    LOSS,
    MARKS,
    S1,
    S2,
    TRANSFORMER,
    Run,
    draw_points,
    names_of,
    over_logarithm,
    row,
    runs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

RATE, ALPHA = "learning rate", "alpha at the start"
SWEEPS = {RATE: ("alpha", (TRANSFORMER, S1, S2)), ALPHA: ("rate", (S1, S2))}
"""By panel, the axis that stays at its middle and the models that are swept."""


class RatesFigure(figures.Figure):
    """A panel for learning rates and one for alpha, a line a model."""

    size = (8.0, 3.4)
    marks = MARKS
    metric = LOSS

    def rows(self) -> list[Row]:
        return [
            row(panel, model, run.seed, _setting(self.view, panel, run), run.loss)
            for panel, (_, models) in SWEEPS.items()
            for model in models
            for run in _swept(self.view, panel, model)
        ]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        for axes, panel in zip(canvas.subplots(1, len(SWEEPS)), SWEEPS, strict=True):
            own = [row for row in rows if row["panel"] == panel]
            draw_points(axes, own, names_of(self.view))
            over_logarithm(axes, own, panel)
            axes.xaxis.set_major_formatter("{x:g}")
            if panel == RATE:
                axes.set_ylabel("validation loss (nats per token)")


def judge_best_rate_is_bracketed(view: View) -> Judgement:
    """Judge whether no model is best at an edge of its learning rates."""
    return _bracketed(view, RATE)


def judge_best_alpha_is_bracketed(view: View) -> Judgement:
    """Judge whether no EBT is best at an edge of its step sizes."""
    return _bracketed(view, ALPHA)


def _bracketed(view: View, panel: str) -> Judgement:
    parts = []
    for model in SWEEPS[panel][1]:
        label = view.artifact.axes["model"].values[model].label
        places = {_setting(view, panel, run): run.place for run in _swept(view.unwatched(), panel, model)}
        parts.append((label, best_is_inside(view, LOSS, places)))
    return combine(parts, FAILS, HOLDS)


def _swept(view: View, panel: str, model: str) -> Sequence[Run]:
    kept, _ = SWEEPS[panel]
    return list(runs(view, model=model, **{kept: "one"}))


def _setting(view: View, panel: str, run: Run) -> float:
    """Return the learning rate of a run, or its alpha at the start."""
    cell = view.point(run.place).cells[run.seed]
    return float(cell.config["optimizer"]["lr"] if panel == RATE else cell.config["model"]["step_size"])
