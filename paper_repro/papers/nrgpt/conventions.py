"""By which way of counting NRGPT's tables print their numbers of parameters.

The paper does not say it, and no one way fits all tables: ``probes.parameter_count`` counts each model at the paper's
size in several, and a table that subclasses ``ParameterTable`` says beside every printed number which of them give it.
"""

import math
from collections.abc import Mapping, Sequence

from paper_repro.cells.planned import Key
from paper_repro.tables import table
from paper_repro.tables.table import Grid

CONVENTIONS = {"untied": "untied", "tied": "tied", "without_positions": "untied without positions"}
"""The counts of ``ParameterCount`` that tables may follow, and how a table calls them."""
ROUNDED, TRUNCATED = "rounded", "truncated"
PRINTED = "n_params"
"""The metric (``measured: false``) with the paper's number."""
Reading = tuple[str, str]
"""A convention, and whether its count is rounded or truncated to the printed digits."""


def readings(printed: str, unit: float, counts: Mapping[str, float]) -> list[Reading]:
    """Return which counts print like this: 888,385 in millions prints "0.9" rounded and "0.8" truncated.

    Args:
        printed: the digits in the paper, without the unit.
        unit: 1e6 for millions.
        counts: parameters by convention.
    """
    digits = len(printed.partition(".")[2])
    wanted = round(float(printed) * 10**digits)
    found = []
    for convention, count in counts.items():
        shifted = count * 10**digits / unit
        found += [(convention, ROUNDED)] if math.floor(shifted + 0.5) == wanted else []
        found += [(convention, TRUNCATED)] if math.floor(shifted) == wanted else []
    return found


def describe(found: Sequence[Reading]) -> str:
    """Write "untied, truncated; untied without positions": a convention by both roundings is named alone."""
    texts = []
    for convention, name in CONVENTIONS.items():
        ways = [how for own, how in found if own == convention]
        texts += [name if len(ways) == 2 else f"{name}, {ways[0]}"] if ways else []
    return "; ".join(texts) or "none of ours"


class ParameterTable(table.Table):
    """A table with a metric ``n_params`` of printed numbers, which says how each was counted."""

    def grid(self) -> Grid:
        """Return the usual lines, and at the end of each the conventions that its printed number follows."""
        plain, found = super().grid(), self._readings()
        texts = ["not run" if own is None else describe(own) for own in found]
        texts += [""] * (len(plain.rows) - len(texts))  # of the baselines
        rows = [[*row, text] for row, text in zip(plain.rows, texts, strict=True)]
        return Grid([*plain.headers, f"{self.artifact.metrics[PRINTED].title}: counted as"], rows)

    def remarks(self) -> list[str]:
        """Return which conventions give all the printed numbers of the table."""
        known = [own for own in self._readings() if own is not None]
        if not known or len(known) < len(self.view.points):
            return []
        common = [reading for reading in known[0] if all(reading in own for own in known)]
        fitting = f"all of them follow {describe(common)}" if common else "no single way gives all of them"
        return [f"The paper does not say how it counts parameters; of the ways that we count, {fitting}."]

    def _readings(self) -> list[list[Reading] | None]:
        return [self._reading(key) for key in self.view.points]

    def _reading(self, key: Key) -> list[Reading] | None:
        """Return the readings of a printed number; None where nothing is counted yet."""
        counts = {name: self.view.samples(f"paper_parameters_{name}", dict(key)) for name in CONVENTIONS}
        known = {name: next(iter(samples.values())) for name, samples in counts.items() if samples}
        printed = self.view.printed(key, PRINTED)
        if printed is None or not known:
            return None
        return readings(f"{printed.mean:.10g}", self.artifact.metrics[PRINTED].factor, known)
