"""What a plan costs: what its tasks count, and a time from the records of like cells.

Counts are kept, so that a second look at a plan needs neither torch nor a minute, under a hash of all that they follow
from: the config, the data files that it names, our code and torch.
"""

import contextlib
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from paper_repro.base import configs, identity
from paper_repro.base.configs import ROOMS, own_packages, without_seeds
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, read_with_digest, sha256_of_file, write_with_digest
from paper_repro.base.identity import MACHINE
from paper_repro.cells import records
from paper_repro.cells.fork_server import ForkServer
from paper_repro.cells.planned import PlannedCell, count_devices, file_hashes, on_gpu
from paper_repro.cells.tasks import Cost, Rehearsal, task_of

COUNTING = (*(room for room in ROOMS if room != "tests"), "kernels", "cells", "base")
"""The parts of the package that take part in a count."""
REHEARSALS = Path("cache") / "rehearsals.json"
PLACES = ("cache", "data_root", "data_workers", "workers", "logger")
"""Keys of ``machine`` that no count reads."""
UNMEASURED_RATE = 5e10
"""FLOPs per second assumed where no record exists: small float32 models on one CPU core."""
UNMEASURED_GPU_RATE = 4.7e13
"""The same of a GPU: 15 % of the peak of an A100 with bf16 products."""
CPUINFO = Path("/proc/cpuinfo")
WIDE = frozenset({"avx512f", "avx_ne_convert"})
"""The processor flags, in Linux's words, of which PyTorch's matrix library needs one to multiply bfloat16."""


@dataclass(frozen=True)
class Estimate:
    """What one cell costs, None where its task counts nothing, and how many seconds it is expected to take."""

    cost: Cost | None
    seconds: float


Count = Callable[[Sequence[PlannedCell]], list[Cost | None]]
"""Returns what each of some cells costs; UsageError: one of them cannot be built."""


def count_here(cells: Sequence[PlannedCell], devices: Mapping[str, Any] | None = None) -> list[Cost | None]:
    """Return what cells cost, counted in this process.

    UsageError names the place of a cell that cannot be built, or says which of the devices that the config ``devices``
    asks for this machine lacks.
    """
    if devices is not None:
        task_of(devices).check_devices(devices)
    found = []
    for cell in cells:
        try:
            found.append(task_of(cell.config).cost(cell.config))
        except UsageError as error:
            if not cell.key:
                raise
            message = f"the cells at {cell.place}: {error}; --config {cell.place} tells where each setting is from"
            raise UsageError(message) from error
    return found


def estimate(
    cells: Sequence[PlannedCell], roots: Sequence[Path], kept: Path, count: Count = count_here
) -> dict[str, Estimate]:
    """Return an estimate of every cell by its id.

    The seconds of a cell are the mean of the records of its ``shape`` below ``roots``.  Where there are none, its FLOPs
    are divided by the rate (FLOPs per second) of the plan's other cells that have records.

    Args:
        kept: the runs folder in which counts are kept.
        count: counts those that were never counted; called in any case, and perhaps with nothing to do.
    """
    shapes = {cell.id: shape(cell) for cell in cells}
    costs = _costs(cells, kept, count)
    rehearsed = rehearsals(kept)
    begun = {root: records.begun(root) for root in roots}
    seconds: dict[str, list[float]] = {}
    rates = []
    for cell in cells:
        found = (records.find(root, cell.id) for root in roots if cell.id in begun[root])
        if (record := next(filter(None, found), None)) is not None and record.done:
            seconds.setdefault(shapes[cell.id], []).append(record.seconds)
            if record.seconds > 0:
                rates.append(_work(costs[cell.id]) / record.seconds)
    rate = statistics.median_high(rates) if rates else None
    result = {}
    for cell in cells:
        cost, known = costs[cell.id], seconds.get(shapes[cell.id])
        expected = sum(known) / len(known) if known else _work(cost) / (rate or unmeasured_rate(cell.config))
        if rehearsed and (own := rehearsed.get(_key(cell))) is not None and not own.trouble:
            expected = sum(known) / len(known) if known else expected_seconds(cell, own)
            cost = cost and replace(cost, memory_bytes=own.memory_bytes)
        result[cell.id] = Estimate(cost, expected)
    return result


def rehearse(cells: Sequence[PlannedCell], runs: Path) -> Iterator[tuple[PlannedCell, Rehearsal | None]]:
    """Rehearse one cell of each shape in a process of its own; what it takes is kept for later estimates."""
    first = dict[str, PlannedCell]()
    for cell in cells:
        first.setdefault(shape(cell), cell)
    with ForkServer(runs, [cell.config for cell in first.values()]) as server:
        for cell in first.values():
            try:
                found: Rehearsal | None = server.call(_rehearse_here, cell.config)
            except RuntimeError as error:
                found = Rehearsal(trouble=str(error))
            if found is not None:
                known = {**rehearsals(runs), _key(cell): found}
                content = json.dumps({key: asdict(own) for key, own in known.items()})
                write_with_digest(runs / REHEARSALS, content.encode())
            yield cell, found


def _rehearse_here(config: Mapping[str, Any]) -> Rehearsal | None:
    return task_of(config).rehearse(config)


def rehearsals(runs: Path) -> dict[str, Rehearsal]:
    """Return what was rehearsed, by ``_key``."""
    with contextlib.suppress(OSError, CorruptFileError, ValueError, TypeError):
        return {key: Rehearsal(**own) for key, own in json.loads(read_with_digest(runs / REHEARSALS)).items()}
    return {}


def expected_seconds(cell: PlannedCell, found: Rehearsal) -> float:
    """Return the seconds of a cell's steps, and of its evaluations of one split."""
    training, batches = cell.config["training"], cell.config["data"].get("num_evaluation_batches") or 1
    steps, every = int(training["steps"]), training.get("evaluate_every")
    during = (steps - 1) // int(every) if every else 0
    evaluated = during * (training.get("evaluation_batches") or batches) + batches
    return steps * found.step_seconds + evaluated * found.evaluation_seconds


def unmeasured_rate(config: Mapping[str, Any]) -> float:
    """Return the FLOPs per second assumed of the machine that a config names: a CPU core, or all GPUs of a cell."""
    machine: Mapping[str, Any] = config.get(MACHINE) or {}
    if not on_gpu(machine):
        return UNMEASURED_RATE
    return UNMEASURED_GPU_RATE * count_devices(machine.get("devices", 1))


def slow_products(config: Mapping[str, Any]) -> str | None:
    """Return how bfloat16 products slow a cell down on this machine; None where they do not, or nobody can know."""
    narrow = str((config.get("training") or {}).get("precision", "")).startswith("bf16")
    if not narrow or on_gpu(config.get(MACHINE) or {}) or not CPUINFO.exists():
        return None
    flags = re.search(r"^flags\s*:(.*)", CPUINFO.read_text(), re.MULTILINE)
    if flags is None or WIDE & {*flags[1].split()}:
        return None
    return (
        "this processor lacks the instructions (AVX-512) that PyTorch multiplies bfloat16 with: such products take "
        "about sixty times as long as in float32, and the cells many times the expected time; "
        "training.precision=32-true runs them in float32, into a folder of their own, not judged against the paper"
    )


def _work(cost: Cost | None) -> float:
    return float(cost.step_flops * cost.steps) if cost is not None else 0.0


def _costs(cells: Sequence[PlannedCell], kept: Path, count: Count) -> dict[str, Cost | None]:
    """Return the cost of each cell by its id; what is in the file that is kept is not counted again."""
    path, stamp = kept / "cache" / "costs.json", _stamp()
    known = dict[str, dict[str, int] | None]()
    with contextlib.suppress(OSError, CorruptFileError, ValueError):
        content = json.loads(read_with_digest(path))
        known = content["costs"] if content.get("stamp") == stamp else {}
    keys, new = {cell.id: _key(cell) for cell in cells}, dict[str, PlannedCell]()
    for cell in cells:
        if keys[cell.id] not in known:
            new.setdefault(keys[cell.id], cell)
    counted = count([*new.values()])
    if new:
        known |= {key: None if cost is None else asdict(cost) for key, cost in zip(new, counted, strict=True)}
        with contextlib.suppress(OSError):  # where the disk refuses, it is counted again another time
            write_with_digest(path, json.dumps({"stamp": stamp, "costs": known}).encode())
    found = {cell: known[key] for cell, key in keys.items()}
    return {cell: None if cost is None else Cost(**cost) for cell, cost in found.items()}


def shape(cell: PlannedCell) -> str:
    """Return a hash of all that decides the cost: not the machine, the seeds, and what may vary within a stack."""
    stack: Mapping[str, Any] = cell.machine.get("stack") or {}
    return identity.fingerprint(without_seeds(configs.without(cell.config, [MACHINE, *stack.get("over", ())])))


def _key(cell: PlannedCell) -> str:
    """Return what the cost of a cell's config is kept under, whatever the seed."""
    read = {key: value for key, value in cell.machine.items() if key not in PLACES}
    config = without_seeds(configs.without(cell.config, [MACHINE]))
    return identity.fingerprint({"config": config, "machine": read, "files": file_hashes(cell.config)})


def _stamp() -> str:
    """Return the hash of the code that counts."""
    folders = [Path(home, room) for home in sys.modules["paper_repro"].__path__ for room in COUNTING]
    paths = (path for folder in (*folders, *own_packages().values()) for path in sorted(folder.rglob("*.py")))
    return identity.fingerprint([metadata.version("torch"), *map(sha256_of_file, paths)])
