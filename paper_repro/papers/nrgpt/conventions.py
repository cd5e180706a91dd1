"""By which way of counting NRGPT's tables print their numbers of parameters.

The paper does not say it, and no one way fits all tables: ``probes.parameter_count`` counts each model at the paper's
size in several, and a table that subclasses ``ParameterTable`` says beside every printed number which of them give it.
"""

import math
from collections.abc import Mapping

from paper_repro.cells.planned import Key
from paper_repro.tables import table
from paper_repro.tables.table import Grid

CONVENTIONS = {"untied": "untied", "tied": "tied", "without_positions": "untied without positions"}
"""The counts of ``ParameterCount`` that tables may follow, and how a table calls them."""
PRINTED = "n_params"
"""The metric (``measured: false``) with the paper's number."""


def fitting(printed: str, unit: float, counts: Mapping[str, float]) -> list[str]:
    """Return which counts print like this, rounded or truncated: 888,385 in millions prints "0.9" or "0.8"."""
    scale = 10 ** len(printed.partition(".")[2])
    wanted, shifted = round(float(printed) * scale), {name: count * scale / unit for name, count in counts.items()}
    return [name for name, count in shifted.items() if wanted in (math.floor(count), math.floor(count + 0.5))]


class ParameterTable(table.Table):
    """A table with a metric ``n_params`` of printed numbers, which says how each was counted."""

    def grid(self) -> Grid:
        plain = super().grid()
        texts = ["not run" if own is None else _names(own) for own in map(self._fitting, self.view.points)]
        texts += [""] * (len(plain.rows) - len(texts))  # of the baselines
        rows = [[*row, text] for row, text in zip(plain.rows, texts, strict=True)]
        return Grid([*plain.headers, f"{self.artifact.metrics[PRINTED].title}: counted as"], rows)

    def remarks(self) -> list[str]:
        known = [own for own in map(self._fitting, self.view.points) if own is not None]
        if not known or len(known) < len(self.view.points):
            return []
        common = [name for name in known[0] if all(name in own for own in known)]
        ways = f"these give all printed numbers: {_names(common)}" if common else "none gives all printed numbers"
        return [f"The paper does not say how it counts parameters; of the ways that we count, {ways}."]

    def _fitting(self, key: Key) -> list[str] | None:
        """Return the conventions of a printed number; None where nothing is counted yet."""
        counts = {name: self.view.samples(f"paper_parameters_{name}", dict(key)) for name in CONVENTIONS}
        known = {name: next(iter(samples.values())) for name, samples in counts.items() if samples}
        printed = self.artifact.printed(key, PRINTED)
        if printed is None or not known:
            return None
        return fitting(f"{printed.mean:.10g}", self.artifact.metrics[PRINTED].factor, known)


def _names(conventions: list[str]) -> str:
    return "; ".join(CONVENTIONS[name] for name in conventions) or "none of ours"
