"""What a plan costs: counts on the meta device, and a time from the records of like cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paper_repro.base import config as configs
from paper_repro.cells import records
from paper_repro.cells.cost import Cost, check, measure
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import Record

UNMEASURED_RATE = 2.5e10
"""Multiply-adds per second assumed where no record exists: small float32 models on one CPU core."""
FORWARD_AND_BACKWARD = 3


@dataclass(frozen=True)
class Estimate:
    """Counts and expected seconds of one cell; without a model, nothing is counted."""

    cost: Cost | None
    seconds: float


def estimate(cells: Sequence[PlannedCell], roots: Sequence[Path]) -> dict[str, Estimate]:
    """The estimate of every cell by id.

    Every point is checked; cells of one shape (same config but for the machine and what may vary within a batch) are
    counted once.  Seconds come from records below ``roots`` of the same shape, else of any cell of the plan by its rate
    of multiply-adds.

    Raises:
        UsageError: a config that cannot be built.
    """
    shapes = {cell.id: _shape(cell) for cell in cells}
    costs: dict[str, Cost | None] = {}
    checked = set()
    for cell in cells:
        if shapes[cell.id] not in costs:
            costs[shapes[cell.id]] = measure(cell.config) if "model" in cell.config else None
        elif cell.key not in checked and "model" in cell.config:
            check(cell.config)
        checked.add(cell.key)
    found = _records(cells, roots)
    seconds: dict[str, list[float]] = {}
    rates = []
    for cell in cells:
        if (record := found.get(cell.id)) is not None and record.done:
            seconds.setdefault(shapes[cell.id], []).append(record.seconds)
            if record.seconds > 0:
                rates.append(_work(cell, costs[shapes[cell.id]]) / record.seconds)
    rate = sorted(rates)[len(rates) // 2] if rates else UNMEASURED_RATE
    result = {}
    for cell in cells:
        cost, known = costs[shapes[cell.id]], seconds.get(shapes[cell.id])
        expected = sum(known) / len(known) if known else _work(cell, cost) / rate
        result[cell.id] = Estimate(cost, expected)
    return result


def _work(cell: PlannedCell, cost: Cost | None) -> float:
    training = cell.config.get("training", {})
    batches = training.get("steps", 1) * training.get("accumulate", 1)
    return float(FORWARD_AND_BACKWARD * cost.multiply_adds * batches) if cost is not None else 0.0


def _shape(cell: PlannedCell) -> str:
    stack: Mapping[str, object] = cell.config.get(configs.MACHINE, {}).get("stack") or {}
    varying = list(stack.get("over", ()))  # type: ignore[call-overload]
    return configs.fingerprint(configs.without(cell.config, [configs.MACHINE, "seed", *varying]))


def _records(cells: Sequence[PlannedCell], roots: Sequence[Path]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for root in roots:
        for cell in cells:
            record = records.find(root, cell.id) if cell.id not in found else None
            if record is not None:
                found[cell.id] = record
    return found
