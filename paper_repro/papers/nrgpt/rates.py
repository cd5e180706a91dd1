"""NRGPT on text: losses against the learning rate, our check that the grid does not decide."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.brackets import best_is_inside
from paper_repro.artifacts.claims import FAILS, HOLDS, Judgement, combine
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LOSS = "best_val_loss"


class RatesFigure(figures.Figure):
    """Every run as a dot, a line through the means over seeds of each model."""

    size = (5.0, 3.6)
    marks = "Faint dots: seeds; marks and lines: means over seeds."
    metric = LOSS

    def rows(self) -> list[Row]:
        return [
            {"model": model, "rate": rate, "seed": seed, LOSS: round(loss, 8)}
            for model in self.artifact.axes["model"].values
            for _, rate, losses in _rates(self.view, model)
            for seed, loss in sorted(losses.items())
        ]

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        axes = canvas.subplots()
        for model, spec in self.artifact.axes["model"].values.items():
            own = [(row["rate"], row[LOSS]) for row in rows if row["model"] == model]
            figures.seeds_and_mean(axes, own, palette.model(self.artifact.id, model), spec.label)
        axes.set(xscale="log", xlabel="initial learning rate", ylabel="best validation loss (nats per token)")
        figures.log_ticks(axes.xaxis)
        axes.xaxis.set_major_formatter("{x:g}")


def judge_best_rate_is_bracketed(view: View) -> Judgement:
    """Judge whether, for each model, some rate inside the grid is better than both of its edges."""
    models = view.artifact.axes["model"].values
    return combine(
        [
            (spec.label, best_is_inside(view, LOSS, {rate: place for place, rate, _ in _rates(view.unwatched(), name)}))
            for name, spec in models.items()
        ],
        FAILS,
        HOLDS,
    )


def _rates(view: View, model: str) -> Iterator[tuple[dict[str, str], float, dict[int, float]]]:
    """Yield the place, the initial rate and the losses by seed of a model's runs, for each rate that was run."""
    for key in view.points:
        place = dict(key)
        losses = view.samples(LOSS, place) if place["model"] == model else {}
        if losses:
            yield place, view.counted("lr", place) or 0.0, losses
