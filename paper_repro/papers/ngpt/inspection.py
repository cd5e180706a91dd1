"""Figures 4, 5 and 6: the files of the inspections, averaged over seeds, as rows and as panels."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paper_repro.tables import figure, plots, stats
from paper_repro.tables.view import View

if TYPE_CHECKING:
    from matplotlib.axis import Axis


@dataclass(frozen=True)
class Series:
    """One curve of every panel: the inspection of a model, averaged over its seeds."""

    label: str
    content: Mapping[str, Any]
    place: Mapping[str, str]


class InspectionFigure(figure.Figure):
    """A figure of ``attachment`` files."""

    attachment: str
    marks = "Lines: means over seeds."

    @cached_property
    def series(self) -> list[Series]:
        return list(_of_records(self.view, self.attachment))

    def rows(self) -> list[figure.Row]:
        return [{"series": series.label, **row} for series in self.series for row in self.rows_of(series)]

    @abstractmethod
    def rows_of(self, series: Series) -> Iterator[figure.Row]:
        """Return the rows of one series, every row with the same keys."""


def _of_records(view: View, attachment: str) -> Iterator[Series]:
    several = [axis for axis in view.artifact.axes if len({dict(key)[axis] for key in view.points}) > 1]
    for place in view.places():
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
    return float(f"{stats.mean(documents):.6g}")


def bins(edges: Sequence[float], shares: Sequence[float]) -> Iterator[figure.Row]:
    """Return low, high and value of each bin from the first to the last that is not empty."""
    filled = [index for index, share in enumerate(shares) if share > 0]
    for index in range(filled[0], filled[-1] + 1) if filled else ():
        yield {"low": edges[index], "high": edges[index + 1], "value": shares[index]}


def colors(series: Sequence[Series]) -> dict[str, str]:
    """Return a colour for each series: its model's, or of several runs of nGPT nGPT's for the first."""
    models = [one.place.get("model", "") for one in series]
    if all(models) and len(set(models)) == len(models):
        return {one.label: plots.model("ngpt", model) for one, model in zip(series, models, strict=True)}
    runs = (plots.model("ngpt", "ngpt"), *plots.RUNS * len(series))
    shades = runs if all("run" in one.place for one in series) else plots.SERIES
    return {one.label: shades[index % len(shades)] for index, one in enumerate(series)}


def by_series(rows: Iterable[figure.Row]) -> dict[str, list[figure.Row]]:
    found: dict[str, list[figure.Row]] = {}
    for row in rows:
        found.setdefault(row["series"], []).append(row)
    return found


def draw_bins(axes: figure.Axes, rows: Sequence[figure.Row], shades: Mapping[str, str], density: bool = False) -> None:
    """Draw each series' histogram as an outline: shares of bins of equal width as drawn, or shares per unit."""
    for label, own in by_series(rows).items():
        heights = [row["value"] / ((row["high"] - row["low"]) if density else 1) for row in own]
        edges = [own[0]["low"], *(row["high"] for row in own)]
        axes.stairs(heights, edges, color=shades[label], label=label, linewidth=1.2)


def draw_curve(axes: figure.Axes, rows: Sequence[figure.Row], shades: Mapping[str, str], line: str = "-") -> None:
    """Draw each series' value against the middle of low and high."""
    for label, own in by_series(rows).items():
        places = [(row["low"] + row["high"]) / 2 for row in own]
        marker = "o" if len(own) <= 60 else None
        values = [row["value"] for row in own]
        axes.plot(places, values, line, color=shades[label], label=label, marker=marker, markersize=3, linewidth=1.2)


def plain_ticks(axis: "Axis") -> None:
    """Write the ticks of a logarithmic axis as plain numbers."""
    plots.log_ticks(axis)
    axis.set_major_formatter("{x:g}")


def count_layers(axes: figure.Axes) -> None:
    """Label an axis of layers with whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def sides(view: View, metrics: Mapping[str, tuple[str, str]]) -> dict[str, tuple[stats.Samples, stats.Samples]]:
    """Return a metric of GPT and one of nGPT by seed, at every size; ``metrics`` has both by the label of the part."""
    found: dict[str, tuple[stats.Samples, stats.Samples]] = {}
    for size, spec in view.artifact.axes["size"].values.items():
        for label, names in metrics.items() if view.places(size=size) else ():
            gpt, ngpt = (
                view.samples(name, {"size": size, "model": model})
                for name, model in zip(names, ("gpt", "ngpt"), strict=True)
            )
            found[f"{spec.label}, {label}"] = gpt, ngpt
    return found
