"""By which way of counting NRGPT's tables print their numbers of parameters.

The paper does not say it, and no one way fits all tables: ``probes.parameter_count`` counts each model at the paper's
size in several, and a table that subclasses ``ParameterTable`` says beside every printed number which of them give it.
"""

import math
from collections.abc import Mapping, Sequence

from paper_repro.artifacts import tables
from paper_repro.artifacts.claims import UNDECIDED, Judgement, Place, exactly
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.views import View
from paper_repro.cells.planned import Key

CONVENTIONS = {"untied": "untied", "tied": "tied", "without_positions": "untied without positions"}
"""Those of ``ParameterCount`` that tables may follow, and how a table calls them."""
ROUNDED, TRUNCATED = "rounded", "truncated"
PRINTED = "n_params"
"""The metric (``measured: false``) with the paper's number."""

Reading = tuple[str, str]
"""A convention, and whether its count is rounded or truncated to the printed digits."""


def readings(printed: str, unit: float, counts: Mapping[str, float]) -> list[Reading]:
    """Return which counts print like this: 888,385 in millions prints "0.9" rounded and "0.8" truncated.

    Args:
        printed: the digits as they stand in the paper, without the unit.
        unit: 1e6 for millions.
        counts: parameters by convention.

    Raises:
        ValueError: ``printed`` is no number, or ``unit`` is not above 0.
    """
    if unit <= 0:
        raise ValueError(f"unit must be above 0, got {unit:g}")
    digits = len(printed.partition(".")[2])
    wanted = round(float(printed) * 10**digits)
    found = []
    for convention, count in counts.items():
        shifted = count * 10**digits / unit
        found += [(convention, ROUNDED)] if math.floor(shifted + 0.5) == wanted else []
        found += [(convention, TRUNCATED)] if math.floor(shifted) == wanted else []
    return found


def describe(found: Sequence[Reading]) -> str:
    """Write conventions in words, as "untied, truncated; untied without positions"; a convention by both roundings
    stands alone.
    """
    texts = []
    for convention, name in CONVENTIONS.items():
        ways = [how for own, how in found if own == convention]
        texts += [name if len(ways) == 2 else f"{name}, {ways[0]}"] if ways else []
    return "; ".join(texts) or "none of ours"


def counts_at(view: View, place: Mapping[str, str]) -> dict[str, float]:
    """Return the counts of the model at a place, by convention; empty if no cell there is finished."""
    found = {name: view.samples(f"paper_parameters_{name}", place) for name in CONVENTIONS}
    return {name: next(iter(samples.values())) for name, samples in found.items() if samples}


class ParameterTable(tables.Table):
    """A table with a metric ``n_params`` of printed numbers, which says how each was counted."""

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        """Return the usual lines, and at the end of each the conventions that its printed number follows."""
        plain = super().grid(markup, chosen)
        rows = []
        for row, key in zip(plain.rows, self.view.points, strict=False):
            found = self._readings(key)
            rows.append([*row, "not run" if found is None else describe(found)])
        rows += [[*row, ""] for row in plain.rows[len(rows) :]]  # of the floors
        return Grid([*plain.headers, f"{self.artifact.metrics[PRINTED].title}: counted as"], rows)

    def remarks(self) -> list[str]:
        """Return which conventions give all the printed numbers of the table."""
        found = [self._readings(key) for key in self.view.points]
        known = [item for item in found if item is not None]
        if not known or len(known) < len(found):
            return []
        common = [reading for reading in known[0] if all(reading in item for item in known)]
        fitting = f"all of them follow {describe(common)}" if common else "no single way gives all of them"
        return [f"How the paper counts parameters it does not say; of the ways that we count, {fitting}."]

    def _readings(self, key: Key) -> list[Reading] | None:
        """Return the readings of a count; None where nothing is counted yet."""
        printed, counts = self.view.printed(key, PRINTED), counts_at(self.view, dict(key))
        if printed is None or not counts:
            return None
        return readings(f"{printed.mean:.10g}", self.artifact.metrics[PRINTED].factor, counts)


def judge_fewer(view: View, more: Place, fewer: Place, millions: float) -> Judgement:
    """Return whether one model has so many million parameters fewer than another, both counted in one way.

    "Around": to half a million.  Where only a mixture of two ways gives the number, the judgement names it: for Tables
    2 and 8, GPT tied (124.5M) less NRGPT untied (90.5M) is the 34M of the text; in one way it is 72.6M.
    """
    larger, smaller = counts_at(view, more), counts_at(view, fewer)
    if not larger or not smaller:
        return Judgement(UNDECIDED, "not run")
    differences = {(a, b): (count - other) / 1e6 for a, count in larger.items() for b, other in smaller.items()}
    fitting = [pair for pair, value in differences.items() if abs(value - millions) <= 0.5]
    alike = ", ".join(f"{differences[name, name]:.1f}M {CONVENTIONS[name]}" for name in larger if name in smaller)
    mixed = ", ".join(f"{CONVENTIONS[a]} less {CONVENTIONS[b]}" for a, b in fitting if a != b)
    if any(a == b for a, b in fitting):
        return exactly(True, f"fewer by {alike}")
    return exactly(False, f"fewer by {alike}" + (f"; {millions:g}M mixes two ways: {mixed}" if mixed else ""))
