"""A finished cell's model, for whatever looks at it afterwards."""

from pathlib import Path

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cell
from paper_repro.training import checkpoints
from paper_repro.training.build import BuiltCell, build


def rebuild(folder: Path, cell: Cell) -> BuiltCell:
    """The cell built anew, without its probes, and with the weights in ``folder``; in evaluation mode, on its device.

    Nothing is read of its data.

    Raises:
        UsageError: there are no weights, they are damaged or another model's, or the config cannot be built.
    """
    weights = folder / checkpoints.WEIGHTS
    if not weights.is_file():
        raise UsageError(f"{weights}: not there, expected the weights of the cell: run it again, or copy them here")
    parts = build(Cell(cell.id, {**cell.config, "probes": {}}))
    checkpoints.load_weights(weights, parts.module, cell.id)
    parts.module.to(parts.machine.device).eval()
    return parts
