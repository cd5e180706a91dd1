"""Tables 4, 5 and 6: changes of the loss against the default."""

from collections.abc import Mapping
from dataclasses import replace

from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import table
from paper_repro.tables.view import View, values

LOSS, CHANGE = "loss", "loss_change"
AXIS, DEFAULT = "setting", "default"


class AblationTable(table.Table):
    """A table whose rows are settings of nGPT, among them the default.

    The metric ``loss_change`` is computed: 100 (loss / the default's loss at the same seed - 1).
    """

    def __init__(self, view: View) -> None:
        super().__init__(with_changes(view))


def with_changes(view: View) -> View:
    """Return the view with ``loss_change`` in every finished record whose seed the first setting has finished, too."""
    axis = view.artifact.axes.get(AXIS)
    named = axis is not None and DEFAULT in axis.values
    base = view.point({AXIS: DEFAULT} if named else dict(next(iter(view.points))))
    points = {
        key: replace(point, own=_changed(point.own, base.own), reference=_changed(point.reference, base.reference))
        for key, point in view.points.items()
    }
    return replace(view, points=points)


def _changed(found: Mapping[int, Record], base: Mapping[int, Record]) -> dict[int, Record]:
    losses = values(base, LOSS)
    changed = dict(found)
    for seed, record in found.items():
        if record.status == FINISHED and LOSS in record.metrics and seed in losses:
            change = 100 * (record.metrics[LOSS] / losses[seed] - 1)
            changed[seed] = replace(record, metrics={**record.metrics, CHANGE: change})
    return changed
