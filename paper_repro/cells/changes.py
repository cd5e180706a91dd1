"""Results that come from other code or data than there is now: which files differ, and how to run them again."""

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paper_repro.base import identity
from paper_repro.cells import measurements, records
from paper_repro.cells.leases import LeasedError, Leases
from paper_repro.cells.measurements import Planned
from paper_repro.cells.records import Record, record_path

ASIDE = "replaced"
"""The folder, below that of all runs, of results that were run again."""
_SHOWN = 4


def changed_files(root: Path, record: Record) -> list[str] | None:
    """Return the files that a result depends on and that are others now than when it was made; None where the record
    does not name them.
    """
    names = [each.get(measurements.LISTED) for each in measurements.code_of(record)]
    code = [identity.other_code(root, name) if name else None for name in names]
    data = identity.other_data(record.config, record.provenance.get("files") or {})
    found = {path for one in code if one is not None for path in one} | {*data}
    return None if None in code and not found else sorted(found)


def changed(root: Path, cells: Iterable[Planned]) -> dict[str, list[str]]:
    """Return the cells whose results below ``root`` come from other files than there are now, each with these."""
    found, there = dict[str, list[str]](), records.begun(root)
    for cell in cells:
        result = measurements.find(root, cell) if cell.id in there else None
        if result is not None and result.record.done and (files := changed_files(root, result.record)):
            found[cell.id] = files
    return found


def told(found: Mapping[str, Sequence[str]]) -> str:
    """Return a line that says how many results come from other files, and which; nothing where none do."""
    files = sorted({file for files in found.values() for file in files})
    if not files:
        return ""
    shown = ", ".join(files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")
    count, them = ("1 result comes", "it") if len(found) == 1 else (f"{len(found)} results come", "them")
    return f"{count} from other code or data than there is now ({shown}); --again makes {them} anew"


def set_aside(root: Path, cells: Iterable[str]) -> None:
    """Move what lies in the folders of cells to the folder ``replaced``, so that they are run again; what an earlier
    call left there is removed.  A cell that another runner is running, or has run anew meanwhile, stays as it is.
    """
    leases = Leases(root)
    for cell in cells:
        home, target = record_path(root, cell).parent, root / ASIDE / cell
        with contextlib.suppress(LeasedError), leases.hold([cell]):
            record = records.find(root, cell)
            if record is None or not changed_files(root, measurements.whole(root, record)):
                continue
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            own = [path for path in home.iterdir() if path.name != "lease" and not path.name.startswith(".")]
            for path in sorted(own, key=lambda path: path.name == "record.json"):  # who is cut off finds it again
                path.rename(target / path.name)
