"""Records of artifacts as a tidy table of pandas."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper_repro.base.errors import RESULTS, UsageError
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.view import build

if TYPE_CHECKING:
    import pandas

LAST = ("seed", "metric", "value", "unit", "status", "cell", "num_parameters", "seconds", "device", "commit")


def frame(*artifacts: str, scale: str = "cpu", runs: str | Path | None = None) -> "pandas.DataFrame":
    """Return one row for each metric of each cell of artifacts that has a record.

    There is a column for each of their axes, with the words of the YAML file, or numbers where every value of the axis
    is one; the others are those of ``LAST``: ``cell`` is the id, ``seconds`` are those of training.
    A metric that a cell lacks, because it diverged or could not be measured, has the value NaN.

    Args:
        artifacts: for example "cem/table3".
        scale: of the artifacts.
        runs: the runs folder to read; None: the committed results of the repository.
    """
    import pandas

    root = RESULTS if runs is None else Path(runs).expanduser()
    if not (root / "cells").is_dir():
        raise UsageError(f"{root}: no folder cells/ in it, expected a runs folder; give runs=DIR")
    rows, axes = list[dict[str, Any]](), list[str]()
    for name in artifacts:
        plan = plans.make(spec.load(name), scale)
        axes += plan.artifact.axes
        head = {"artifact": plan.artifact.id, "scale": plan.scale_name}
        units = {name: metric.unit for name, metric in plan.artifact.metrics.items() if metric.measured}
        numbers = {
            axis: {word: value.number for word, value in one.values.items()}
            for axis, one in plan.artifact.axes.items()
            if all(value.number is not None for value in one.values.values())
        }
        for key, point in build(plan, root, None).points.items():
            place = {axis: numbers.get(axis, {}).get(value, value) for axis, value in key}
            own = [record for _, record in sorted(point.own.items())]
            rows += [{**head, **place, **row} for record in own for row in _rows(record, units)]
    return pandas.DataFrame(rows, columns=["artifact", "scale", *dict.fromkeys(axes), *LAST])


def _rows(record: Record, units: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a record's metrics; an unfinished one lacks those of ``units``, which are NaN."""
    expected = units if record.status != FINISHED else ()
    for name in dict.fromkeys([*record.metrics, *record.unavailable, *expected]) or [""]:
        yield {
            "seed": record.seed,
            "metric": name,
            "value": record.metrics.get(name, float("nan")),
            "unit": units.get(name, ""),
            "status": record.status,
            "cell": record.cell,
            "num_parameters": record.parameters,
            "seconds": record.seconds,
            "device": record.provenance.get("device"),
            "commit": record.provenance.get("commit"),
        }
