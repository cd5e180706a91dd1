"""Tables of EBT with floors: a floor has a loss, and nothing of a training."""

from collections.abc import Collection, Sequence
from typing import Any

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.verdicts import NOT_RUN
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import FLOOR, LOSS, floor, labels, runs

TRAINING = "paper_repro.training.fit.Fit"


def without(found: Grid, view: View, of_training: Collection[str]) -> Grid:
    """Leave empty what a finished row does not have, and where nothing is trained the columns ``of_training``."""
    rows = []
    for point, row in zip(view.points.values(), found.rows, strict=True):
        trained = any(cell.config["task"]["_target_"] == TRAINING for cell in point.cells.values())
        empty = () if trained else of_training
        finished = bool(view.judged(point))
        cells = zip(found.headers, row, strict=True)
        rows.append(["" if header in empty or (finished and cell == NOT_RUN) else cell for header, cell in cells])
    return Grid(found.headers, rows)


class SparseTable(tables.Table):
    """A table of trainings and floors that do not all have the same metrics: what a finished row does not have is left
    empty, and the settings of a training where nothing is trained.
    """

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        settings = {column.title for column in self.artifact.columns.values()}
        return without(super().grid(markup, chosen), self.view, settings)


class LanguageTable(tables.Table):
    """A table of trainings and their floor, whose settings and costs of training it leaves out.

    What a finished row does not have is left empty.
    """

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        found = super().grid(markup, chosen)
        kept = {axis.title for axis in self.artifact.axes.values()}
        kept |= set(self._metric_headers(self.artifact.metrics[LOSS]))
        return without(found, self.view, {header for header in found.headers if header not in kept})

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
