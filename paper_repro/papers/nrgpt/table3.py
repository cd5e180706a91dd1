"""NRGPT, Table 3: the printed ideal ranges, and which known texts lie in them."""

from paper_repro.tables import stats, table
from paper_repro.tables.table import Grid

ROUNDING = 1e-9
"""A score of 0.8 is a sum of products that may end a few units of rounding below it."""


class Table3(table.Table):
    def grid(self) -> Grid:
        measured, ranges = super().grid(), self._ranges()
        ideal = ["Ideal range (paper)"]
        for name, headers in self._headers.items():
            first = f"{ranges[name][0]:g} to {ranges[name][1]:g}" if name in ranges else ""
            ideal += [first, *[""] * (len(headers) - 1)]
        rows = [[*row, self._outside(dict(key))] for row, key in zip(measured.rows, self.view.points, strict=True)]
        return Grid([*measured.headers, "Outside its ideal range"], [[*ideal, ""], *rows])

    def _outside(self, place: dict[str, str]) -> str:
        """Return the metrics whose mean over seeds is outside, of those that have a value."""
        ranges = self._ranges()
        means = {name: stats.mean(list(found.values())) for name in ranges if (found := self.view.samples(name, place))}
        if not means:
            return "nothing measured"
        outside = [
            self.artifact.metrics[name].title
            for name, mean in means.items()
            if not ranges[name][0] - ROUNDING <= mean <= ranges[name][1] + ROUNDING
        ]
        return f"{', '.join(outside) or 'none'} (of {len(means)} measured)"

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Map each metric to its lower and upper end, from the cells' config."""
        return {name: (low, high) for name, (low, high) in self.view.plan.cells[0].config["ranges"].items()}
