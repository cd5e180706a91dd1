"""What a plan costs: what its tasks count, and a time from the records of like cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import MACHINE
from paper_repro.cells import records
from paper_repro.cells.counted import Counts, shape
from paper_repro.cells.machine_section import count_devices, on_gpu
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import Cost, task_of

UNMEASURED_RATE = 5e10
"""FLOPs per second assumed where no record exists: small float32 models on one CPU core."""
UNMEASURED_GPU_RATE = 4.7e13
"""The same of a GPU: 15 % of the peak of an A100 with bf16 products."""
WIDE = frozenset({"avx512f", "avx_ne_convert"})
"""The processor flags, in Linux's words, of which PyTorch's matrix library needs one to multiply bfloat16."""


@dataclass(frozen=True)
class Estimate:
    """What one cell costs and how many seconds it is expected to take.

    ``cost`` is None where the cell's task counts nothing.
    """

    cost: Cost | None
    seconds: float


Configs = Sequence[Mapping[str, Any]]
Count = Callable[[Configs, Configs], list[Cost | None]]
"""Returns what each of the first configs costs, and raises CannotBuildError if one of either cannot be built."""


class CannotBuildError(UsageError):
    """One of several configs cannot be built; ``number`` counts through those that are counted, then the others."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


def count_here(configs: Configs, others: Configs) -> list[Cost | None]:
    """Return what cells of these configs cost, counted in this process; check of the others whether they can be built.

    Raises:
        CannotBuildError: a config that cannot be built.
    """
    found = []
    for number, config in enumerate((*configs, *others)):
        try:
            if number < len(configs):
                found.append(task_of(config).cost(config))
            else:
                task_of(config).check(config)
        except UsageError as error:
            raise CannotBuildError(str(error), number) from error
    return found


def estimate(
    cells: Sequence[PlannedCell], roots: Sequence[Path], count: Count = count_here, kept: Path | None = None
) -> dict[str, Estimate]:
    """Estimate every cell; the result maps a cell's id to its estimate.

    Every point is checked.  Cells of one shape (same config but for the machine and what may vary within a stack) are
    counted once.  The seconds of a cell are the mean of the records of its shape below ``roots``.  Where there are
    none, its FLOPs are divided by the rate (FLOPs per second) of the plan's other cells that have records.

    Args:
        count: counts those that were never counted; called in any case, and perhaps with nothing to do.
        kept: the runs folder in which counts are kept (see ``counted``); None: all is counted anew.

    Raises:
        UsageError: a config that cannot be built.
    """
    shapes = {cell.id: shape(cell) for cell in cells}
    of_shapes: dict[str, PlannedCell] = {}
    others, checked = list[PlannedCell](), set()
    for cell in cells:
        if shapes[cell.id] not in of_shapes:
            of_shapes[shapes[cell.id]] = cell
        elif cell.key not in checked:
            others.append(cell)
        checked.add(cell.key)
    costs = dict(zip(of_shapes, _counted(list(of_shapes.values()), others, count, kept), strict=True))
    found = _records(cells, roots)
    seconds: dict[str, list[float]] = {}
    rates = []
    for cell in cells:
        if (record := found.get(cell.id)) is not None and record.done:
            seconds.setdefault(shapes[cell.id], []).append(record.seconds)
            if record.seconds > 0:
                rates.append(_work(costs[shapes[cell.id]]) / record.seconds)
    rate = sorted(rates)[len(rates) // 2] if rates else None
    result = {}
    for cell in cells:
        cost, known = costs[shapes[cell.id]], seconds.get(shapes[cell.id])
        expected = sum(known) / len(known) if known else _work(cost) / (rate or unmeasured_rate(cell.config))
        result[cell.id] = Estimate(cost, expected)
    return result


def unmeasured_rate(config: Mapping[str, Any]) -> float:
    """Return the FLOPs per second assumed of the machine that a config names: a CPU core, or all GPUs of a cell."""
    machine: Mapping[str, Any] = config.get(MACHINE) or {}
    if not on_gpu(machine):
        return UNMEASURED_RATE
    return UNMEASURED_GPU_RATE * count_devices(machine.get("devices", 1))


def slow_products(config: Mapping[str, Any], flags: frozenset[str]) -> str | None:
    """Return how this processor's bfloat16 products slow a cell down; None where they do not, or nothing is known.

    Args:
        config: a cell's; only one that trains on a CPU with bfloat16 products is slowed.
        flags: of the processor (``processor_flags``); empty: unknown.
    """
    machine, training = config.get(MACHINE) or {}, config.get("training") or {}
    narrow = str(training.get("precision", "")).startswith("bf16")
    if on_gpu(machine) or not narrow or not flags or WIDE & flags:
        return None
    return (
        "this processor lacks the instructions (AVX-512) that PyTorch multiplies bfloat16 with: such products take "
        "about sixty times as long as in float32, and the cells many times the expected time; "
        "training.precision=32-true runs them in float32, into a folder of their own, not judged against the paper"
    )


def processor_flags(information: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Read the flags of the first processor; none where the system has no such file or words."""
    try:
        lines = information.read_text().splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(found.partition(":")[2].split())


def _work(cost: Cost | None) -> float:
    return float(cost.step_flops * cost.steps) if cost is not None else 0.0


def _counted(
    cells: Sequence[PlannedCell], others: Sequence[PlannedCell], count: Count, kept: Path | None
) -> list[Cost | None]:
    """Return what the cells cost, those of known cost from the file that is kept."""
    if kept is None:
        return _called(count, cells, others)
    known = Counts(kept)
    new = [cell for cell in cells if not known.has_cost(cell)]
    unchecked = [cell for cell in others if not known.was_checked(cell)]
    for cell, cost in zip(new, _called(count, new, unchecked), strict=True):
        known.keep(cell, cost)
    for cell in unchecked:
        known.keep_checked(cell)
    known.write()
    return [known.cost(cell) for cell in cells]


def _called(count: Count, cells: Sequence[PlannedCell], others: Sequence[PlannedCell]) -> list[Cost | None]:
    """Count, and name the cell whose config cannot be built by the values of its axes."""
    try:
        return count([cell.config for cell in cells], [cell.config for cell in others])
    except CannotBuildError as error:
        if not (key := (*cells, *others)[error.number].key):
            raise
        place = ",".join(f"{axis}={value}" for axis, value in key)
        raise UsageError(f"the cells at {place}: {error}; --config {place} tells where each setting is from") from error


def _records(cells: Sequence[PlannedCell], roots: Sequence[Path]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    for root in roots:
        there = records.begun(root)
        for cell in cells:
            record = records.find(root, cell.id) if cell.id in there and cell.id not in found else None
            if record is not None:
                found[cell.id] = record
    return found
