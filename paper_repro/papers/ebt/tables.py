"""Tables of EBT with floors: a floor has a loss, and nothing of a training."""

from collections.abc import Sequence
from typing import Any

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.sparse_tables import without
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.views import Point
from paper_repro.papers.ebt.learning import FLOOR, LOSS, floor, labels, runs


def is_floor(point: Point) -> bool:
    """Return whether a row is the floor of language models."""
    return dict(point.key)["model"] == FLOOR


class LanguageTable(tables.Table):
    """A table of trainings and their floor, whose settings and costs of training it leaves out.

    What a finished row does not have is left empty.
    """

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        found = super().grid(markup, chosen)
        kept = {axis.title for axis in self.artifact.axes.values()}
        kept |= set(self._metric_headers(self.artifact.metrics[LOSS]))
        return without(found, self.view, {header for header in found.headers if header not in kept}, is_floor)

    def long_rows(self) -> list[dict[str, Any]]:
        return [row for row in super().long_rows() if row["model"] != FLOOR or row["quantity"] == LOSS]

    def remarks(self) -> list[str]:
        """Say which settings are not below the floor."""
        lowest = floor(self.view)
        if lowest is None:
            return []
        places: dict[str, list[float]] = {}
        for run in runs(self.view):
            places.setdefault(labels(self.view, run.place), []).append(run.loss)
        above = [name for name, values in places.items() if intervals.mean(values) >= lowest]
        listed = f": {'; '.join(above)}" if above else ""
        return [f"Of {len(places)} settings {len(above)} are not below the floor of {lowest:.4f}{listed}."]
