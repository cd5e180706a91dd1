"""A made-up artifact, and records made up for the cells of a plan and written where the runner would write them."""

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells import records
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import NOTHING, Artifact

PROVENANCE = {"commit": "0" * 40, "dirty": False, "versions": {"torch": "2.13.0"}, "device": "a processor"}

ARTIFACT = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")


def write_artifact(folder: Path, text: str = ARTIFACT, name: str = "up") -> Path:
    path = folder / "made" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str = ARTIFACT) -> Artifact:
    return spec.load_file(write_artifact(folder, text))


def plan(folder: Path, text: str = ARTIFACT, scale: str = "paper", overrides: tuple[str, ...] = ()) -> Plan:
    return plans.make(load(folder, text), scale, overrides=overrides)


def write_record(root: Path, cell: PlannedCell, outcome: Outcome) -> Record:
    record = records.from_outcome(cell.id, cell.config, outcome, PROVENANCE)
    records.write(record_path(root, cell.id), record)
    return record


def fill(
    root: Path,
    plan: Plan,
    outcome: Callable[[PlannedCell], Outcome | None],
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Write a record for every cell of a plan to which ``outcome`` gives one, and for its baselines.

    Args:
        baselines: the values of the baselines' records by metric.  Every finished model beats those that it leaves
            out, and a model without the metric is given one.
    """
    made = {cell.id: (cell, found) for cell in plan.cells if (found := outcome(cell)) is not None}
    learned = [found for _, found in made.values() if found.status == FINISHED]
    for baseline in plan.baselines:
        worse = 1.0 if baseline.spec.direction == "lower" else -1.0
        for metric in baseline.spec.metrics if baseline.spec.judges != NOTHING else ():
            for found in learned:
                if metric not in {*found.unavailable, *(baselines or {})}:
                    found.metrics.setdefault(metric, -worse * 1e3)
        for cell in baseline.cells.values():
            numbers = dict(baselines or {})
            for metric, name in baseline.spec.metrics.items():
                values = [worse * found.metrics[metric] for found in learned if metric in found.metrics]
                numbers.setdefault(name, worse * (max(values, default=0.0) + 1.0))
            write_record(root, cell, Outcome(FINISHED, numbers))
    for cell, found in made.values():
        write_record(root, cell, found)


def finished(**metrics: float) -> Outcome:
    return Outcome(FINISHED, metrics=metrics, parameters=1000, multiply_adds=10, seconds=1.0)


def attached(root: Path) -> Callable[[PlannedCell], Outcome]:
    """Finished outcomes, each with a file trace.csv beside its record, with the names of the root and of the cell."""

    def outcome(cell: PlannedCell) -> Outcome:
        content = f"{root.name} {cell.id}".encode()
        path = record_path(root, cell.id).parent / "trace.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return Outcome(FINISHED, {"error": 0.5, "score": 1.0}, attachments={path.name: sha256_of_bytes(content)})

    return outcome


def near_the_paper(plan: Plan, spread: float = 0.02) -> Callable[[PlannedCell], Outcome]:
    """Outcomes within ``spread`` (relative) of what the paper prints, the same for the same cell in every process."""

    def outcome(cell: PlannedCell) -> Outcome:
        metrics = {}
        for name in plan.artifact.metrics:
            printed = plan.artifact.printed(cell.key, name)
            noise = random.Random(f"{cell.id}/{name}").uniform(-spread, spread)
            metrics[name] = (1.0 if printed is None else printed.mean) * (1.0 + noise)
        curve = [(step, math.exp(-step / 500)) for step in range(0, 3000, 10)]
        return Outcome(FINISHED, metrics, {"loss": curve}, parameters=22_657, multiply_adds=6_730_000, seconds=12.5)

    return outcome
