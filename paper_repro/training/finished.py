"""A finished cell's model, for whatever looks at it afterwards."""

from collections.abc import Sequence
from pathlib import Path

from paper_repro.base import identity
from paper_repro.cells.tasks import Cell, weights_of
from paper_repro.training import checkpoints
from paper_repro.training.build import BuiltCell, build


def rebuild(folder: Path, cell: Cell, probes: Sequence[str] = ()) -> BuiltCell:
    """Return the cell built anew with the weights in ``folder`` and the probes of these names; in evaluation mode.

    Its config may be that of an older record (``base.identity.today``).

    Nothing is read of its data.

    Raises:
        UsageError: there are no weights, they are damaged or another model's, or the config cannot be built.
    """
    weights = weights_of(folder)
    config = identity.today(cell.config)
    wanted = {name: (config.get("probes") or {})[name] for name in probes}
    built = build(Cell(cell.id, {**config, "probes": wanted}))
    checkpoints.load_weights(weights, built.module, cell.id)
    built.module.to(built.machine.device).eval()
    return built
