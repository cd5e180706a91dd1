"""Tables of rows that do not all have the same metrics: models, and floors that are not trained."""

from collections.abc import Callable, Collection, Sequence

from paper_repro.artifacts import tables
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.verdicts import NOT_RUN
from paper_repro.artifacts.views import Point, View

TRAINING = "paper_repro.training.fit.Fit"


def is_trained(point: Point) -> bool:
    """Return whether the cells of a row are trainings."""
    return any(cell.config["task"]["_target_"] == TRAINING for cell in point.cells.values())


def without(found: Grid, view: View, of_training: Collection[str], floor: Callable[[Point], bool]) -> Grid:
    """Leave empty what a finished row does not have, and in the rows of a floor the columns ``of_training``."""
    rows = []
    for point, row in zip(view.points.values(), found.rows, strict=True):
        empty = of_training if floor(point) else ()
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
        return without(super().grid(markup, chosen), self.view, settings, lambda point: not is_trained(point))
