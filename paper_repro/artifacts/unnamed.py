"""Metrics that a YAML names and that no finished cell has: mostly a slip in the name."""

from collections.abc import Iterable, Iterator, Mapping

from paper_repro.artifacts.artifact import Metric
from paper_repro.base.errors import nearest
from paper_repro.cells.records import Record


def unnamed(metrics: Mapping[str, Metric], found: Iterable[Record]) -> dict[str, str]:
    """Return the metrics that are in no record, neither with a value nor with what they lack, each with why.

    Args:
        metrics: of the artifact.
        found: finished records, one of each kind of cell at least.
    """
    known = {name for record in found for name in (*record.metrics, *record.unavailable)}
    return {
        name: why
        for name, metric in metrics.items()
        if metric.measured and name not in known and (why := next(_slips(name, metric, known), ""))
    }


def _slips(name: str, metric: Metric, known: set[str]) -> Iterator[str]:
    if not metric.derived:
        yield f"no metric of that name{nearest(name, known)}"
    for source in (source for sources in metric.derived.values() for source in sources):
        if known.isdisjoint(source.split(" or ")):
            yield f"no metric {source}{nearest(source, known)}"
