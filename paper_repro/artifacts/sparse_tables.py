"""Tables of cells that do not all have the same metrics."""

from collections.abc import Sequence

from paper_repro.artifacts import tables
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.verdicts import NOT_RUN


class SparseTable(tables.Table):
    """A table of models of which not all have the same metrics: what a finished row does not have is left empty."""

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        found = super().grid(markup, chosen)
        rows = []
        for point, row in zip(self.view.points.values(), found.rows, strict=False):
            finished = bool(self.view.judged(point))
            rows.append(["" if finished and cell == NOT_RUN else cell for cell in row])
        return Grid(found.headers, rows + found.rows[len(rows) :])
