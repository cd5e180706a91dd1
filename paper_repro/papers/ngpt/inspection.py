"""What figures 4, 5 and 6 share: the files that the inspections left, averaged over seeds, as rows and as panels."""

import itertools
import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import figures, intervals, palette
from paper_repro.artifacts.claims import UNDECIDED, Judgement, exactly, tested
from paper_repro.artifacts.figures import Row
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


@dataclass(frozen=True)
class Series:
    """One curve of every panel: what the inspection of a model left, the mean over its seeds."""

    label: str
    content: Mapping[str, Any]
    place: Mapping[str, str] = field(default_factory=dict)


class InspectionFigure(figures.Figure):
    """A figure of ``attachment`` files.

    Args:
        source: an artifact with its records, or the series themselves.
        series: those of the artifact, where they have been read.
    """

    attachment: str
    marks = "Lines: means over seeds."
    margins = figures.Margins(left=0.75, right=0.1, top=0.32, bottom=0.48, across=0.45, down=0.75)

    def __init__(self, source: View | Sequence[Series], series: Sequence[Series] | None = None) -> None:
        if isinstance(source, View):
            super().__init__(source)
            self.series: Sequence[Series] = series or list(_of_records(source, self.attachment))
        else:
            self.series = source
        self.source = source

    def footer(self, rows: Sequence[Row]) -> str:
        """Return the figure's line of an artifact; the series of a single model name it themselves."""
        return super().footer(rows) if hasattr(self, "view") else ""

    def rows(self) -> list[Row]:
        return [{"series": series.label, **row} for series in self.series for row in self.rows_of(series)]

    @abstractmethod
    def rows_of(self, series: Series) -> Iterator[Row]:
        """Return the rows of one series, every row with the same keys."""


def _of_records(view: View, attachment: str) -> Iterator[Series]:
    several = [axis for axis in view.artifact.axes if len({dict(key)[axis] for key in view.points}) > 1]
    for key in view.points:
        place = dict(key)
        documents = [json.loads(content) for _, content in sorted(view.attachments(attachment, place).items())]
        if documents:
            labels = [view.artifact.axes[axis].values[place[axis]].label for axis in several or view.artifact.axes]
            yield Series(", ".join(labels), average(documents), place)


def average(documents: Sequence[Any]) -> Any:
    """Return the mean of documents of one form, number by number."""
    first = documents[0]
    if isinstance(first, dict):
        return {name: average([document[name] for document in documents]) for name in first}
    if isinstance(first, list):
        return [average(numbers) for numbers in zip(*documents, strict=True)]
    return float(f"{intervals.mean(documents):.6g}")


def bins(edges: Sequence[float], shares: Sequence[float]) -> Iterator[Row]:
    """Return low, high and value of each bin from the first to the last that is not empty."""
    filled = [index for index, share in enumerate(shares) if share > 0]
    for index in range(filled[0], filled[-1] + 1) if filled else ():
        yield {"low": edges[index], "high": edges[index + 1], "value": shares[index]}


def colors(series: Sequence[Series]) -> dict[str, str]:
    """Return a colour for each series: its model's where each has a model of its own; nGPT's for the first of several
    runs, which are all of nGPT, and others for those behind it; else one after the other.
    """
    models = [one.place.get("model", "") for one in series]
    if all(models) and len(set(models)) == len(models):
        return {one.label: palette.model("ngpt", model) for one, model in zip(series, models, strict=True)}
    shades: Sequence[str] = palette.SERIES
    if all("run" in one.place for one in series):
        shades = palette.model("ngpt", "ngpt"), *itertools.islice(itertools.cycle(palette.RUNS), len(series))
    return {one.label: shades[index % len(shades)] for index, one in enumerate(series)}


def by_series(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["series"], []).append(row)
    return found


def draw_bins(axes: "Axes", rows: Sequence[Row], shades: Mapping[str, str], density: bool = False) -> None:
    """Draw each series' histogram as an outline: shares of bins of equal width as drawn, or shares per unit."""
    for label, own in by_series(rows).items():
        heights = [row["value"] / ((row["high"] - row["low"]) if density else 1) for row in own]
        edges = [own[0]["low"], *(row["high"] for row in own)]
        axes.stairs(heights, edges, color=shades[label], label=label, linewidth=1.2)


def draw_curve(axes: "Axes", rows: Sequence[Row], shades: Mapping[str, str], line: str = "-") -> None:
    """Draw each series' value against the middle of low and high."""
    for label, own in by_series(rows).items():
        places = [(row["low"] + row["high"]) / 2 for row in own]
        marker = "o" if len(own) <= 60 else None
        values = [row["value"] for row in own]
        axes.plot(places, values, line, color=shades[label], label=label, marker=marker, markersize=3, linewidth=1.2)


def label_powers(axis: "Axis", most: int = 5) -> None:
    """Set few and plain labels on a logarithmic axis: 1, 2 and 5 times powers of ten, no more than a few of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 1.0
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if 3 * decades <= most + 1 else (1,), numticks=most))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def count_layers(axes: "Axes") -> None:
    """Label an axis of layers with whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def within(
    view: View, metric: str, place: Mapping[str, str], low: float, high: float, ratio: bool = False
) -> Judgement:
    """Return whether a metric's mean lies in [low, high], by its 95 % interval over seeds; of a ratio, by the interval
    of its logarithm.
    """
    return guarded(view, lambda seen: _within(seen, metric, place, low, high, ratio))


def _within(view: View, metric: str, place: Mapping[str, str], low: float, high: float, ratio: bool) -> Judgement:
    found = view.samples(metric, place)
    if not found:
        return Judgement(UNDECIDED, view.absence(metric, place))
    if ratio:
        found = {seed: math.log(value) for seed, value in found.items()}
        low, high = (math.log(bound) if bound > 0.0 else -math.inf for bound in (low, high))
    interval = intervals.of(list(found.values()))
    printed = [math.exp(x) if ratio else x for x in (interval.mean, interval.low, interval.high, low, high)]
    if interval.count < 2:
        return Judgement(UNDECIDED, f"{printed[0]:.4g}, one seed: not judged")
    mean, least, most, lowest, highest = printed
    bounds = f"expected between {lowest:g} and {highest:g}"
    if math.inf in (-low, high):
        bounds = f"expected at most {highest:g}" if high < math.inf else f"expected at least {lowest:g}"
    numbers = f"{mean:.4g} [{least:.4g}, {most:.4g}], {interval.count} seeds"
    return tested(interval, f"{numbers}; {bounds}", low, high, relative=ratio)


def in_every_model(view: View, metric: str, place: Mapping[str, str], high: float) -> Judgement:
    """Return whether a metric is at most ``high`` in every trained model at a place; for what follows from the
    construction of the model, up to rounding, and not from chance.
    """
    found = view.samples(metric, place)
    if not found:
        return Judgement(UNDECIDED, view.absence(metric, place))
    span = f"{min(found.values()):.3g} to {max(found.values()):.3g} over {len(found)} models"
    return exactly(max(found.values()) <= high, f"{span}; expected at most {high:g}")
