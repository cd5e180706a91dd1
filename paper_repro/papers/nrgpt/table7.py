"""NRGPT, Table 7: the printed grid against the authors' sweep, against the paper's own best rows and against ours."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Task
from paper_repro.tables import table
from paper_repro.tables.table import Grid

GRIDS = ("table7", "sweep")
ROUNDING = 1e-9
"""Relative; values are equal that differ by the rounding of a quotient."""


class GridCheck(Task):
    """Says of one hyperparameter which printed rows, and whether our value, lie in which grid; trains nothing."""

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        spec: Mapping[str, Any] = cell.config["hyperparameter"]
        metrics: dict[str, float] = {}
        best: Mapping[str, Any] = spec["best"] or {}
        for grid in GRIDS:
            inside = {row: _inside(_quotient(value), spec[grid]) for row, value in best.items()}
            metrics |= {f"{grid}/{row}": float(found) for row, found in inside.items()}
            if best:
                metrics[f"outside_{grid}"] = sum(not found for found in inside.values())
            if spec["ours"] is not None:
                metrics[f"ours_in_{grid}"] = float(_inside(_quotient(spec["ours"]), spec[grid]))
        lacking = {} if best else {f"outside_{grid}": "no best row prints it" for grid in GRIDS}
        return Outcome(FINISHED, metrics=metrics, unavailable=lacking)


def _quotient(value: Any) -> float:
    return float(value[0]) / float(value[1]) if isinstance(value, list) else float(value)


def _inside(value: float, grid: Any) -> bool:
    if isinstance(grid, Mapping):
        return bool(grid["low"] * (1 - ROUNDING) <= value <= grid["high"] * (1 + ROUNDING))
    return any(math.isclose(value, item, rel_tol=ROUNDING) for item in grid)


class Table7(table.Table):
    def grid(self) -> Grid:
        counted, specs = super().grid(), self._specs().values()
        rows = []
        for row, spec in zip(counted.rows, specs, strict=True):
            ours = "" if spec["ours"] is None else f"{_quotient(spec['ours']):.6g}"
            rows.append([row[0], _text(spec["table7"]), _text(spec["sweep"]), ours, *row[1:]])
        return Grid([counted.headers[0], "Table 7", "Authors' sweep", "nrgpt/owt", *counted.headers[1:]], rows)

    def summary(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for grid in GRIDS:
            values = {name: spec[grid] for name, spec in self._specs().items()}
            combinations = math.prod(len(value) for value in values.values() if isinstance(value, list))
            pairs = [(width, heads) for width in values["n_embed"] for heads in values["n_head"]]
            fitting = sum(width % heads == 0 for width, heads in pairs)
            found[f"combinations_{grid}"] = combinations
            found[f"fitting_{grid}"] = combinations * fitting // len(pairs)
        return found

    def _specs(self) -> dict[str, Mapping[str, Any]]:
        """Map each hyperparameter to its grids and values, from the cells' config."""
        points = self.view.points.items()
        return {
            dict(key)["hyperparameter"]: next(iter(point.cells.values())).config["hyperparameter"]
            for key, point in points
        }


def _text(grid: Any) -> str:
    if isinstance(grid, Mapping):
        return f"{grid['low']:g} to {grid['high']:g}"
    return ", ".join(f"{value:g}" for value in grid)
