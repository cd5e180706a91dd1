"""What EBT's artifacts about thinking share: losses over steps and samples, gains, function evaluations."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from paper_repro.artifacts import intervals
from paper_repro.artifacts.claims import Judgement, tested
from paper_repro.artifacts.derived import gain
from paper_repro.artifacts.sparse_tables import SparseTable
from paper_repro.artifacts.typesetting import Grid as Lines
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import NOT_RUN

VALIDATION = "validation"
VALIDATION_LOSS = "validation_loss"
"""Without noise, of the documents that probes score."""
GRID = "thinking.csv"
PAPER_SETS = ("gsm8k", "squad", "bigbench-math", "bigbench-dyck")
OWN_SETS = ("dyck-generated", "listops", "python", "shakespeare")
Seeds = dict[int, float]


class At(NamedTuple):
    """Where a loss was measured."""

    texts: str
    steps: int
    samples: int


class Measured(NamedTuple):
    """Nats per token."""

    loss: float
    oracle: float | None
    """The loss of the sample that is best by the next token itself; None for a Transformer++."""


Grid = dict[At, Measured]


def grids(view: View, place: Mapping[str, str]) -> dict[int, Grid]:
    """Return the losses over sets, steps and samples of the finished cells at a place, by seed."""
    found = {}
    for seed, content in sorted(view.attachments(GRID, place).items()):
        rows = csv.DictReader(io.StringIO(content.decode()))
        found[seed] = {
            At(row["set"], int(row["steps"]), int(row["samples"])): Measured(
                float(row["loss"]), float(row["oracle"]) if row["oracle"] else None
            )
            for row in rows
        }
    return found


def foreign(grid: Iterable[At]) -> list[str]:
    """Return the sets of a grid that are not the training distribution's, in the order of the probe."""
    return [name for name in dict.fromkeys(at.texts for at in grid) if name != VALIDATION]


def evaluations(steps: int, samples: int) -> int:
    """Return the function evaluations of S steps of N samples: N S, and 1 for the energies of the last states."""
    return steps * samples + 1


def fewest(grid: Iterable[At]) -> int:
    return min(at.steps for at in grid)


def most(grid: Iterable[At]) -> At:
    """Return the most steps and the most samples of a grid; of which set does not matter."""
    return max(grid, key=lambda at: (at.steps, at.samples))


def mean_gain(grid: Grid, before: tuple[int, int], after: tuple[int, int], names: Sequence[str] | None = None) -> float:
    """Return the mean gain over sets from some steps and samples to others.

    Args:
        names: of the sets; all foreign ones if None.
    """
    chosen = foreign(grid) if names is None else names
    return intervals.mean([gain(grid[At(name, *before)].loss, grid[At(name, *after)].loss) for name in chosen])


def over_grids(found: Mapping[int, Grid], quantity: Callable[[Grid], float]) -> Seeds:
    """Return a quantity of each seed's grid."""
    return {seed: quantity(grid) for seed, grid in found.items()}


def above(
    values: Mapping[int, float], bound: float = 0.0, what: str = "", unit: str = "", digits: int = 2
) -> Judgement:
    """Judge whether a quantity is above a bound by its interval over seeds, written with so many decimals."""
    if not values:
        return NOT_RUN
    found = intervals.of(list(values.values()))
    mean, low, high = (f"{value:+.{digits}f}" for value in (found.mean, found.low, found.high))
    return tested(found, f"{what} {mean} [{low}, {high}]{unit}, {found.count} seeds".strip(), bound)


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Seeds:
    """Return the difference of two quantities for the seeds that both have."""
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def trained_tokens(view: View, place: Mapping[str, str]) -> int:
    """Return the tokens that a run at a place trains on, as full documents."""
    return round(math.prod(view.counted(name, place) or 0.0 for name in ("steps", "batch", "window")))


class ThinkingTable(SparseTable):
    """A sparse table that leaves out settings which all rows share."""

    shared = ("batch", "window", "depth", "width")

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Lines:
        names = [name for name in self.artifact.quantities if name not in self.shared] if chosen is None else chosen
        return super().grid(markup, names)
