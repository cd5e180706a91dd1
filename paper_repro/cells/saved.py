"""The steps that cells without a result have saved, read from the names of their checkpoints."""

import contextlib
import json
from collections.abc import Collection
from pathlib import Path

from paper_repro.cells.records import STACKS, record_path
from paper_repro.cells.tasks import CHECKPOINT, CHECKPOINTS

MEMBERS = "members.json"
"""In the folder of cells that run together, their ids."""


def saved_steps(runs: Path, cells: Collection[str]) -> dict[str, int]:
    """Return the last saved step of those of ``cells`` that have one, whether they train alone or in a stack."""
    found = {cell: _last(record_path(runs, cell).parent / CHECKPOINTS) for cell in cells}
    for path in (runs / STACKS).glob(f"*/{MEMBERS}"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # it ends, or is damaged
            step = _last(path.parent / CHECKPOINTS)
            found.update({cell: max(step, found[cell]) for cell in json.loads(path.read_bytes()) if cell in found})
    return {cell: step for cell, step in found.items() if step}


def _last(folder: Path) -> int:
    names = (CHECKPOINT.fullmatch(path.name) for path in folder.glob("step-*.ckpt"))
    return max((int(name[1]) for name in names if name), default=0)
