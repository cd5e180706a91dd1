"""From what a user writes, an id or a path, to a cell's record."""

import difflib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paper_repro.base import identity
from paper_repro.base.command_line import RESULTS, default_runs
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError
from paper_repro.cells import measurements, records
from paper_repro.cells.records import Record, record_path

SHORTEST = 4
"""How many characters of an id have to be given."""


def cells_of(root: Path) -> list[str]:
    """Return the ids of the cells below ``root`` that have a record."""
    return sorted(path.parent.name for path in (root / "cells").glob("*/record.json"))


def find(word: str | Path, roots: Sequence[Path]) -> tuple[Path, Record]:
    """Return the folder of a cell and its record, with what probes have measured since.

    Args:
        word: the folder of a cell, a file in it, the cell's id, or at least four characters with which the id of one
            cell alone begins.
        roots: runs folders, the first that has the cell counts.

    Raises:
        UsageError: there is no such cell (with the nearest id), several begin so, or its record is damaged.
    """
    path = Path(word).expanduser()
    folder = path.parent if path.is_file() else path
    if not (folder / "record.json").is_file():
        if folder.is_dir() and path.name != str(word):
            raise UsageError(f"{word}: no record.json in it, expected the folder of a cell, runs/cells/<cell>")
        folder = _folder(str(word), roots)
    try:
        record = records.read(folder / "record.json")
    except (OSError, CorruptFileError) as error:
        raise UsageError(str(error)) from error
    inside = folder.parent.name == "cells" and folder.name == record.cell
    return folder, measurements.whole(folder.parent.parent, record) if inside else record


def trained(checkpoint: Path) -> tuple[Path, Record]:
    """Return the folder of a trained cell and its record, see ``records.finished``.

    Args:
        checkpoint: the folder, a file in it, or a word that ``find`` takes, in the default folder of runs.
    """
    if checkpoint.exists() or len(checkpoint.parts) != 1:
        return records.finished(checkpoint)
    return records.finished(find(checkpoint, [default_runs()])[0])


def _folder(word: str, roots: Sequence[Path]) -> Path:
    for root in roots:
        if "/" not in word and record_path(root, word).is_file():
            return record_path(root, word).parent
    known = {cell: root for root in reversed(roots) for cell in cells_of(root)}
    begin = [cell for cell in known if cell.startswith(word)] if len(word) >= SHORTEST else []
    if len(begin) == 1:
        return record_path(known[begin[0]], begin[0]).parent
    where = " and ".join(str(root / "cells") for root in roots)
    if begin:
        raise UsageError(f"{word}: {len(begin)} cells begin so, {', '.join(sorted(begin)[:5])}; give more of the id")
    published = _published(word) if len(word) >= SHORTEST else ""
    cutoff = 0.3 if len(word) < identity.LENGTH else 0.8  # of whole ids any two are alike by chance
    close = [] if published else difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    near = f" (did you mean '{close[0]}'?)" if close else ""
    raise UsageError(f"{word}: neither the folder of a cell nor the id of one in {where}{near}{published}")


def _published(word: str) -> str:
    """Say where a cell that begins so is published, and what makes its weights; nothing of other words."""
    for path in sorted(RESULTS.glob("*/*/*/table.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged table says nothing
            table = json.loads(path.read_text(encoding="utf-8"))
            if not any(cell.startswith(word) for cell in table["cells"]):
                continue
            command = f"reproduce.py {table['artifact']} scale={table['scale']}"
            return f"; its record is published with {table['artifact']}, weights are not: run {command} to train it"
    return ""
