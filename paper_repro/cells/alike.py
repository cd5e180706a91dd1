"""How many steps of training the cells of one command have in common, so that a trial of one may serve them all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paper_repro.base.configs import without_seeds
from paper_repro.base.identity import AUTO, MACHINE, fingerprint
from paper_repro.cells.planned import PlannedCell

_SHAPING = ("model", "module", "data")


def told(cells: Sequence[PlannedCell], todo: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Return the cells; where ``machine.compile`` is auto, ``machine.alike_steps`` says how many steps those of
    ``todo`` have together that differ in seed, optimiser, schedule and number of steps alone.
    """
    kinds = {cell.id: _kind(cell.config) for cell in cells if _section(cell, MACHINE).get("compile") == AUTO}
    steps = dict.fromkeys(kinds.values(), 0)
    for cell in todo:
        if cell.id in kinds:
            steps[kinds[cell.id]] += int(_section(cell, "training").get("steps") or 0)
    return [
        replace(cell, config={**cell.config, MACHINE: {**cell.config[MACHINE], "alike_steps": steps[kinds[cell.id]]}})
        if cell.id in kinds
        else cell
        for cell in cells
    ]


def _kind(config: Mapping[str, Any]) -> str:
    training = config.get("training") or {}
    shape = {key: without_seeds(config.get(key)) for key in _SHAPING}
    return fingerprint({**shape, **{key: training.get(key) for key in ("precision", "accumulate")}})


def _section(cell: PlannedCell, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cell.config.get(name) or {}
    return found
