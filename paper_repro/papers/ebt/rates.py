"""EBT: losses against the learning rate and the step size alpha, our check that their grids do not decide."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures
from paper_repro.artifacts.brackets import bracketed
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View
from paper_repro.metrics.learning_rate import optimal_learning_rate
from paper_repro.papers.ebt.learning import (
    FEWEST_SIZES,
    LOSS,
    MARKS,
    S1,
    S2,
    TRANSFORMER,
    Run,
    draw_points,
    means,
    names_of,
    over_logarithm,
    row,
    runs,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

RATE, ALPHA = "learning rate", "alpha at the start"
SWEEPS = {RATE: ("alpha", (TRANSFORMER, S1)), ALPHA: ("rate", (S1, S2))}
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
        for axes, panel in zip(canvas.subplots(1, len(SWEEPS), sharey=True), SWEEPS, strict=True):
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
        parts.append((label, _inside(view, panel, list(_swept(view.unwatched(), panel, model)))))
    return combine(parts, FAILS, HOLDS)


def _inside(view: View, panel: str, found: Sequence[Run]) -> Judgement:
    points = [row(panel, run.place["model"], run.seed, _setting(view, panel, run), run.loss) for run in found]
    settings, losses = means(points)
    if len(settings) < FEWEST_SIZES:
        return Judgement(UNDECIDED, "fewer than three settings finished")
    best = losses.index(min(losses))
    grid = ", ".join(f"{setting:g}: {loss:.4f}" for setting, loss in zip(settings, losses, strict=True))
    best_runs = [run for run in found if _setting(view, panel, run) == settings[best]]
    sweep: dict[float, dict[int, float]] = {}
    for run in found:
        sweep.setdefault(_setting(view, panel, run), {})[run.seed] = run.loss

    def judge(view: View) -> Judgement:
        view.samples(LOSS, best_runs[0].place)  # of the whole grid the best setting alone has to be below the floor
        near = optimal_learning_rate(settings, losses).learning_rate
        return bracketed(sweep, f"best near {near:.3g} ({grid})")

    return guarded(view, judge)


def _swept(view: View, panel: str, model: str) -> Sequence[Run]:
    kept, _ = SWEEPS[panel]
    return list(runs(view, model=model, **{kept: "one"}))


def _setting(view: View, panel: str, run: Run) -> float:
    """Return the learning rate of a run, or its alpha at the start."""
    cell = view.point(run.place).cells[run.seed]
    return float(cell.config["optimizer"]["lr"] if panel == RATE else cell.config["model"]["step_size"])
