"""EBT, figure B.1: losses on video over width and parameters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, Order, Side, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import MARKS, NOT_RUN, TRANSFORMER, above_zero, compared, exponents_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LOSS = "test_loss"
MODELS = (TRANSFORMER, "ebt")
PANELS = {"width": "width", "trunk_parameters": "non-embedding parameters"}


class Run(NamedTuple):
    """One finished run."""

    value: str
    """Value of the axis ``width``."""
    seed: int
    width: int
    parameters: int
    loss: float


class FigureB1(figures.Figure):
    """Loss over width and over parameters; every seed a dot, a line through the means."""

    size = (8.0, 3.6)
    marks = MARKS
    metric = LOSS

    def rows(self) -> list[Row]:
        rows = []
        for model in MODELS:
            for run in _runs(self.view, model):
                for panel, x in zip(PANELS, (run.width, run.parameters), strict=True):
                    rows.append({"panel": panel, "model": model, "seed": run.seed, "x": x, "loss": round(run.loss, 8)})
        return rows

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        labels = {name: value.label for name, value in self.artifact.axes["model"].values.items()}
        for axes, (panel, title) in zip(canvas.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
            for model in MODELS:
                own = [(row["x"], row["loss"]) for row in rows if (row["panel"], row["model"]) == (panel, model)]
                figures.seeds_and_mean(axes, own, palette.model(self.artifact.id, model), labels[model])
            axes.set(xlabel=title)
            if rows:
                axes.set(xscale="log")
                figures.log_ticks(axes.xaxis)
        canvas.axes[0].set_ylabel("test loss (Smooth L1)")


def judge_video_scaling(view: View) -> Judgement:
    """Judge the losses of the smallest width, and the two exponents over the width."""
    found = {model: _runs(view, model) for model in MODELS}
    if not all(found.values()):
        return NOT_RUN if view.points else Judgement(UNDECIDED, "the scale has no such cells")
    smallest = min(found["ebt"], key=lambda run: run.width).value
    ours, theirs = (Side(LOSS, {"model": model, "width": smallest}) for model in ("ebt", "transformer"))
    exponents = [
        exponents_of([(run.value, run.seed, run.width, run.loss) for run in found[model]]) for model in reversed(MODELS)
    ]
    parts = [
        ("higher at the smallest width", Order(ours, theirs).judge(view, {})),
        ("the larger exponent", above_zero(*compared(*exponents))),
    ]
    return combine(parts, FAILS, HOLDS)


def _runs(view: View, model: str) -> list[Run]:
    runs = []
    for value in view.artifact.axes["width"].values:
        place = {"model": model, "width": value}
        if not view.covers(place):
            continue
        parameters = view.samples("trunk_parameters", place)
        for seed, loss in sorted(view.samples(LOSS, place).items()):
            width = round(view.counted("width", place) or 0.0)
            runs.append(Run(value, seed, width, round(parameters.get(seed, 0.0)), loss))
    return runs
