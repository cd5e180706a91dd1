"""Metrics that follow from others: the perplexity of a loss needs no record of its own, and no training."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from paper_repro.artifacts.artifact import Metric
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED, NOT_FINITE


def gain(before: float, after: float) -> float:
    """Return by how many percent the perplexity falls from one loss to another, both in nats per token."""
    return 100 * (1 - math.exp(after - before))


FUNCTIONS: dict[str, tuple[int, Callable[..., float]]] = {
    "exp": (1, math.exp),
    "log": (1, math.log),
    "complement": (1, lambda share: 1 - share),
    "difference": (2, lambda one, other: one - other),
    "ratio": (2, lambda one, other: one / other),
    "gain": (2, gain),
}
"""What ``derived`` may name, with the number of metrics that it takes."""


def with_derived(record: Record, metrics: Mapping[str, Metric]) -> Record:
    """Add each derived metric to the record that can be computed from what it has measured.

    A metric that the record holds already stays as it was measured.  One whose value is not finite is not
    available and says so; one whose sources are not available is not available for their reason.
    """
    if record.status != FINISHED:
        return record
    found, lacking = dict(record.metrics), dict(record.unavailable)
    for name, metric in metrics.items():
        if not metric.derived or name in found:
            continue
        value = _value(metric, found)
        if value is not None and math.isfinite(value):
            found[name] = value
        elif value is not None:
            lacking[name] = NOT_FINITE
        elif (reason := _lack(metric, lacking)) is not None:
            lacking[name] = reason
    if len(found) == len(record.metrics) and len(lacking) == len(record.unavailable):
        return record
    return replace(record, metrics=found, unavailable=lacking)


def derivation_problem(name: str, metric: Metric) -> str | None:
    """Return what is wrong with how a metric is derived; None if nothing is."""
    if not metric.derived:
        return None
    if len(metric.derived) != 1:
        return f"'{name}' is derived by one function, found {len(metric.derived)}"
    ((function, sources),) = metric.derived.items()
    if function not in FUNCTIONS:
        return f"'{name}' is derived by {function!r}, expected one of {', '.join(FUNCTIONS)}"
    if len(sources) != FUNCTIONS[function][0]:
        return f"'{name}': {function} takes {FUNCTIONS[function][0]} metric(s), found {len(sources)}"
    return None


def _value(metric: Metric, measured: Mapping[str, float]) -> float | None:
    """Return what follows from the measured metrics, NaN where that is no number; None where one was not measured."""
    ((function, sources),) = metric.derived.items()
    values = [_first(source, measured) for source in sources]
    if None in values:
        return None
    try:
        return FUNCTIONS[function][1](*values)
    except (ValueError, OverflowError, ZeroDivisionError):
        return math.nan


def _lack(metric: Metric, unavailable: Mapping[str, str]) -> str | None:
    """Return why a metric that it follows from is not available; None if each is measured or was never asked for."""
    ((_, sources),) = metric.derived.items()
    names = [name for source in sources for name in source.split(" or ")]
    return next((unavailable[name] for name in names if name in unavailable), None)


def _first(source: str, measured: Mapping[str, float]) -> float | None:
    """Return the first that was measured of the metrics that a source names, with " or " between them."""
    return next((measured[name] for name in source.split(" or ") if name in measured), None)
