"""Tables of cells that do not all have the same metrics."""

from paper_repro.artifacts import tables
from paper_repro.artifacts.views import Point, values


class SparseTable(tables.Table):
    """A table of models of which not all have the same metrics: what a finished row does not have is left empty."""

    def unknown(self, point: Point, name: str, source: str) -> str:
        """Return nothing for a row that was run and does not have the metric, else that it was not run."""
        if source == "reference":
            lacking = bool(point.reference)
        elif source == "own":
            beside = values(point.reference, name) or self.absence(point, name, "reference")
            lacking = bool(point.own) or not beside
        else:
            lacking = bool(self.view.judged(point))
        return "" if lacking else super().unknown(point, name, source)
