"""NRGPT, Table 7: the printed grid against the authors' sweep, against the paper's own best rows and against ours."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.artifacts import tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, exactly
from paper_repro.artifacts.typesetting import Grid
from paper_repro.artifacts.views import View
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task

GRIDS = ("table7", "sweep")
ROWS = {
    "table1": "Table 1, all models",
    "table2_gpt": "Tables 2 and 8, GPT",
    "table2_rgpt_parallel": "Tables 2 and 8, RGPT-parallel",
    "table2_ff2w": "Tables 2 and 8, FF2W",
    "table5_gpt": "Table 5, GPT",
    "table5_rgpt_parallel": "Table 5, RGPT-parallel",
    "table5_ff2w": "Table 5, FF2W",
}
ROUNDING = 1e-9
"""Relative; values are equal that differ by the rounding of a quotient."""


class GridCheck(Task):
    """Says of one hyperparameter which printed rows, and which value of ours, lie in which grid; trains nothing."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [_outcome(cell.config["hyperparameter"]) for cell in cells]


def _outcome(spec: Mapping[str, Any]) -> Outcome:
    lacking = {} if spec["best"] else {f"outside_{grid}": "no best row prints it" for grid in GRIDS}
    return Outcome(FINISHED, metrics=_metrics(spec), unavailable=lacking)


def _metrics(spec: Mapping[str, Any]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    best: Mapping[str, Any] = spec["best"] or {}
    for grid in GRIDS:
        inside = {row: _inside(_quotient(value), spec[grid]) for row, value in best.items()}
        metrics |= {f"{grid}/{row}": float(found) for row, found in inside.items()}
        if best:
            metrics[f"outside_{grid}"] = sum(not found for found in inside.values())
        if spec["ours"] is not None:
            metrics[f"ours_in_{grid}"] = float(_inside(_quotient(spec["ours"]), spec[grid]))
    return metrics


def _quotient(value: Any) -> float:
    return float(value[0]) / float(value[1]) if isinstance(value, list) else float(value)


def _inside(value: float, grid: Any) -> bool:
    if isinstance(grid, Mapping):
        return bool(grid["low"] * (1 - ROUNDING) <= value <= grid["high"] * (1 + ROUNDING))
    return any(math.isclose(value, item, rel_tol=ROUNDING) for item in grid)


class Table7(tables.Table):
    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        counted = super().grid(markup, chosen)
        headers = [counted.headers[0], "Table 7", "Authors' sweep", "nrgpt/owt", *counted.headers[1:]]
        rows = []
        for row, name in zip(counted.rows, self.artifact.axes["hyperparameter"].values, strict=True):
            spec = _spec(self.view, name)
            ours = "" if spec["ours"] is None else f"{_quotient(spec['ours']):.6g}"
            rows.append([row[0], _text(spec["table7"]), _text(spec["sweep"]), ours, *row[1:]])
        return Grid(headers, rows)

    def summary(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for grid in GRIDS:
            values = {name: _spec(self.view, name)[grid] for name in self.artifact.axes["hyperparameter"].values}
            listed = [value for value in values.values() if isinstance(value, list)]
            pairs = [(width, heads) for width in values["n_embed"] for heads in values["n_head"]]
            fitting = sum(width % heads == 0 for width, heads in pairs)
            combinations = math.prod(map(len, listed))
            found[f"combinations_{grid}"] = combinations
            found[f"fitting_{grid}"] = combinations * fitting // len(pairs)
        return found


def judge_best_rows_in_table7(view: View) -> Judgement:
    return _best_rows_in(view, "table7")


def judge_best_rows_in_sweep(view: View) -> Judgement:
    return _best_rows_in(view, "sweep")


def judge_ours_in_table7(view: View) -> Judgement:
    return _ours_in(view, "table7")


def judge_ours_in_sweep(view: View) -> Judgement:
    return _ours_in(view, "sweep")


def _best_rows_in(view: View, grid: str) -> Judgement:
    """Judge rows: one lies in the grid if every value that it prints does."""
    parts = []
    for row, label in ROWS.items():
        found = _found(view, f"{grid}/{row}")
        outside = [_label(view, name) for name, inside in found.items() if not inside]
        verdict = FAILS if outside else HOLDS if found else UNDECIDED
        text = f"outside: {', '.join(outside)}" if outside else f"{len(found)} values inside" if found else "not run"
        parts.append((label, Judgement(verdict, text, exact=bool(found))))
    return combine(parts, FAILS, HOLDS)


def _ours_in(view: View, grid: str) -> Judgement:
    found = _found(view, f"ours_in_{grid}")
    if not found:
        return Judgement(UNDECIDED, "not run")
    outside = [_label(view, name) for name, inside in found.items() if not inside]
    text = f"outside: {', '.join(outside)}" if outside else f"{len(found)} values inside"
    return exactly(not outside, text)


def _found(view: View, metric: str) -> dict[str, float]:
    """Return a recorded metric by hyperparameter, where there is one."""
    samples = {
        name: view.samples(metric, {"hyperparameter": name}) for name in view.artifact.axes["hyperparameter"].values
    }
    return {name: next(iter(found.values())) for name, found in samples.items() if found}


def _label(view: View, name: str) -> str:
    return view.artifact.axes["hyperparameter"].values[name].label


def _spec(view: View, name: str) -> Mapping[str, Any]:
    cell = next(iter(view.point({"hyperparameter": name}).cells.values()))
    spec: Mapping[str, Any] = cell.config["hyperparameter"]
    return spec


def _text(grid: Any) -> str:
    if isinstance(grid, Mapping):
        return f"{grid['low']:g} to {grid['high']:g}"
    return ", ".join(f"{value:g}" for value in grid)
