"""The figure of an artifact that sweeps learning rates, or other settings, for claims that the best lies inside."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper_repro.artifacts import figures, palette
from paper_repro.artifacts.brackets import Bracketed
from paper_repro.artifacts.claims import Claim, Place
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.views import View
from paper_repro.base.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

RATE_KEY = "optimizer.lr"
SPAN = 2.0
"""Losses that lie further apart than this ratio stand on a logarithmic axis; claims are about ratios, too."""


class RatesFigure(figures.Figure):
    """Loss over learning rate: every run as a dot, a line through the means over seeds of each model.

    There is a panel for each claim whose predicate is ``bracketed``, with its metric and its column, and for each place
    on the axes besides the model's that it runs over.

    Raises:
        UsageError: the artifact has no such claim or no axis ``model``, or its claims have different metrics.
    """

    marks = "Faint dots: seeds; marks and lines: means over seeds."

    def __init__(self, view: View) -> None:
        super().__init__(view)
        claims = [(claim, claim.predicate) for claim in self.artifact.claims]
        self._sweeps = [(claim, found) for claim, found in claims if isinstance(found, Bracketed)]
        losses = {swept.side.metric for _, swept in self._sweeps}
        if len(losses) != 1 or "model" not in self.artifact.axes:
            raise UsageError(
                f"{self.artifact.path}: RatesFigure draws the sweeps of claims whose predicate is 'bracketed', all of "
                "one metric, a line for each value of the axis 'model': add what is missing, or leave out 'figure'"
            )
        self.metric = self._loss = losses.pop()
        count = len([*self._panels()])
        self.size = (5.0, 3.6) if count == 1 else (4.0 * count, 3.4)

    def _panels(self) -> Iterator[tuple[Claim, Bracketed, Place]]:
        """Yield each sweep with its place on those axes, but for the model's, over which its claim runs."""
        keys = [dict(key) for key in self.view.points]
        for claim, swept in self._sweeps:
            varied = [axis for axis in claim.over if axis != "model" and len({key[axis] for key in keys}) > 1]
            places = dict.fromkeys(tuple((axis, key[axis]) for axis in varied) for key in keys)
            yield from ((claim, swept, dict(place)) for place in places)

    def _label(self, place: Place) -> str:
        axes = self.artifact.axes
        return ", ".join(
            f"{axes[axis].title.lower()} {axes[axis].values[value].label}" for axis, value in place.items()
        )

    def _key(self, claim: Claim, place: Place) -> str:
        """Return how figure.csv names a panel."""
        return ", ".join(filter(None, (claim.id, self._label(place))))

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for claim, swept, panel in self._panels():
            fixed = {**swept.side.place, **panel}
            wanted = {**claim.only, **{axis: [value] for axis, value in fixed.items()}}
            places = [dict(key) for key in self.view.points]
            for place in (own for own in places if all(own[axis] in values for axis, values in wanted.items())):
                losses = self.view.samples(self._loss, place)
                setting = self.view.counted(swept.by, place) if losses else None
                for seed, loss in sorted(losses.items()):
                    own = {"claim": self._key(claim, panel), "model": place["model"], "setting": setting, "seed": seed}
                    found.append({**own, self._loss: round(loss, 8)})
        return found

    def draw(self, canvas: "Canvas", rows: Sequence[Row]) -> None:
        sweeps = [*self._panels()]
        panels = canvas.subplots(1, len(sweeps), squeeze=False)[0]
        for axes, (claim, swept, place) in zip(panels, sweeps, strict=True):
            name = self._key(claim, place)
            for model, value in self.artifact.axes["model"].values.items():
                own = [row for row in rows if row["claim"] == name and row["model"] == model]
                points = [(row["setting"], row[self._loss]) for row in own]
                figures.seeds_and_mean(axes, points, palette.model(self.artifact.id, model), value.label)
            axes.set(xscale="log", xlabel=self._name(swept.by), title=self._label(place))
            own = [row for row in rows if row["claim"] == name]
            figures.ticks_at(axes, (row["setting"] for row in own))
            losses = [row[self._loss] for row in own]
            if losses and max(losses) > SPAN * min(losses) > 0:
                axes.set_yscale("log")
                figures.log_ticks(axes.yaxis)
                axes.yaxis.set_major_formatter("{x:g}")
        spec = self.artifact.metrics[self._loss]
        panels[0].set_ylabel(f"{spec.title} ({spec.unit})")

    def _name(self, column: str) -> str:
        spec = self.artifact.columns[column]
        return "initial learning rate" if spec.source == RATE_KEY else spec.title[0].lower() + spec.title[1:]
