"""Losses of models that think longer or take the best of several samples, and how their artifacts compare them."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from paper_repro.tables import stats
from paper_repro.tables.claims import Place
from paper_repro.tables.spec import gain
from paper_repro.tables.view import View

VALIDATION = "validation"
VALIDATION_LOSS = "validation_loss"
"""Without noise, of the documents that probes score."""
GRID = "thinking.csv"
PAPER_SETS = ("gsm8k", "squad", "bigbench-math", "bigbench-dyck")
OWN_SETS = ("dyck-generated", "listops", "python", "shakespeare")


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
Chosen = Callable[[Grid], tuple[int, int]]
"""Chooses steps and samples of a grid."""


def grids(view: View, place: Place) -> dict[int, Grid]:
    """Return the losses over sets, steps and samples of the finished cells at a place, by seed."""
    found: dict[int, Grid] = {}
    for seed, table in view.tables(GRID, place).items():
        found[seed] = {}
        for row in table:
            at = At(row["set"], int(row["steps"]), int(row["samples"]))
            found[seed][at] = Measured(float(row["loss"]), float(row["oracle"]) if row["oracle"] else None)
    return found


def foreign(grid: Iterable[At]) -> list[str]:
    """Return the sets of a grid other than validation, in the order of the probe."""
    return [name for name in dict.fromkeys(at.texts for at in grid) if name != VALIDATION]


def evaluations(steps: int, samples: int) -> int:
    """Return the function evaluations of S steps of N samples: N S, and 1 for the energies of the last states."""
    return steps * samples + 1


def first(grid: Grid) -> tuple[int, int]:
    """Return the fewest steps and one sample."""
    return min(at.steps for at in grid), 1


def longest(grid: Grid) -> tuple[int, int]:
    """Return the most steps and one sample."""
    return max(at.steps for at in grid), 1


def verified(grid: Grid) -> tuple[int, int]:
    """Return the most steps and the most samples."""
    return max((at.steps, at.samples) for at in grid)


def mean_gain(grid: Grid, before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the mean gain over all foreign sets from some steps and samples to others, in percent of perplexity."""
    return stats.mean([gain(grid[At(name, *before)].loss, grid[At(name, *after)].loss) for name in foreign(grid)])


def perplexities(found: Mapping[int, Grid], at: Chosen) -> dict[str, dict[int, float]]:
    """Return the perplexity on each foreign set by seed, after the steps and with the samples that are chosen."""
    by_set: dict[str, dict[int, float]] = {}
    for seed, grid in found.items():
        for name in foreign(grid):
            if (here := At(name, *at(grid))) in grid:
                by_set.setdefault(name, {})[seed] = math.exp(grid[here].loss)
    return by_set


def by_set(
    left: Mapping[str, stats.Samples], right: Mapping[str, stats.Samples]
) -> dict[str, tuple[stats.Samples, stats.Samples]]:
    """Return both sides of each set that both have."""
    return {name: (left[name], right[name]) for name in left if right.get(name)}


def trained_tokens(view: View, place: Place) -> int:
    """Return the tokens that a run at a place trains on, as full documents."""
    return round(math.prod(view.counted(name, place) or 0.0 for name in ("steps", "batch", "window")))
