"""EBT, figure B.1: losses on video over width and parameters."""

from collections.abc import Iterator, Sequence

from paper_repro.papers.ebt.learning import fitted
from paper_repro.tables import claims, figure, plots
from paper_repro.tables.view import View

LOSS = "test_loss"
MODELS = ("transformer", "ebt")
PANELS = {"width": "width", "trunk_parameters": "non-embedding parameters"}


class FigureB1(figure.Figure):
    """Loss over width and over parameters; every seed a dot, a line through the means."""

    size = (8.0, 3.6)
    metric = LOSS

    def rows(self) -> list[figure.Row]:
        return [
            {"panel": panel, "model": model, "seed": seed, "x": x, "loss": round(loss, 8)}
            for model in MODELS
            for seed, *sizes, loss in _runs(self.view, model)
            for panel, x in zip(PANELS, sizes, strict=True)
        ]

    def draw(self, canvas: figure.Canvas, rows: Sequence[figure.Row]) -> None:
        for axes, (panel, title) in zip(canvas.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
            own = [row for row in rows if row["panel"] == panel]
            plots.models(axes, self.view, own, "x", "loss")
            axes.set(xlabel=title, xscale="log" if rows else "linear")
            if rows and panel == "width":
                plots.ticks_at(axes, (row["x"] for row in own))
            elif rows:
                plots.log_ticks(axes.xaxis)
        canvas.axes[0].set_ylabel("test loss (Smooth L1)")


def estimate_video_scaling(view: View) -> claims.Estimate:
    """Return b of EBT less b of Transformer++, of log L = a - b log X over widths X for each seed (figure B.1)."""

    def exponents(model: str) -> dict[int, float]:
        by_seed: dict[int, list[tuple[float, float]]] = {}
        for seed, width, _, loss in _runs(view, model):
            by_seed.setdefault(seed, []).append((width, loss))
        return fitted(by_seed)

    theirs, ours = map(exponents, MODELS)
    return claims.difference("exponent of EBT", "exponent of Transformer++", {"": (ours, theirs)})


def _runs(view: View, model: str) -> Iterator[tuple[int, int, int, float]]:
    """Yield seed, width, parameters and loss of each finished run."""
    for value in view.artifact.axes["width"].values:
        place = {"model": model, "width": value}
        if not view.places(**place):
            continue
        parameters = view.samples("trunk_parameters", place)
        for seed, loss in sorted(view.samples(LOSS, place).items()):
            width = round(view.counted("width", place) or 0.0)
            yield seed, width, round(parameters.get(seed, 0.0)), loss
