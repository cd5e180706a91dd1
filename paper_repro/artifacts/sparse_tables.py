"""Tables of cells that do not all have the same metrics."""

from collections.abc import Sequence

from paper_repro.artifacts import tables
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.verdicts import NOT_RUN
from paper_repro.artifacts.views import Point


class SparseTable(tables.Table):
    """A table of models of which not all have the same metrics: what a finished row does not have is left empty."""

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        found = super().grid(markup, chosen)
        rows = []
        for point, row in zip(self.view.points.values(), found.rows, strict=False):
            beside = zip(found.headers, row, ["", *row[:-1]], strict=True)
            rows.append(
                [
                    "" if cell == NOT_RUN and self._lacks_it(point, header, before) else cell
                    for header, cell, before in beside
                ]
            )
        return Grid(found.headers, rows + found.rows[len(rows) :])

    def _lacks_it(self, point: Point, header: str, before: str) -> bool:
        """Return whether a cell says "not run" of a row that was run and does not have the metric.

        Args:
            before: the text of the cell to the left; for the user's own records it is that of the reference.
        """
        if header.endswith(": reference"):
            return bool(point.reference)
        if header.endswith(": yours"):
            return bool(point.own) or (bool(point.reference) and before == NOT_RUN)
        return bool(self.view.judged(point))
