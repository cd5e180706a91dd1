"""Give records that an older version of the code has written the ids that today's rules give their cells.

    rename_records.py                    the records of runs/
    rename_records.py runs=DIR           the records of another folder
    rename_records.py --dry-run          say which would be renamed

Contents and metrics stay as they are.  Each record says under which id it was first written.  Files beside a
record (weights, later measurements, texts) move with it and name its new id.  Records that have their id already are
not touched, so the command may be interrupted and repeated.  Exit codes as reproduce.py's.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import sys
from collections.abc import Sequence

from paper_repro.base import identity
from paper_repro.base.errors import UsageError, parse, run_main
from paper_repro.base.files import CorruptFileError, write_atomically
from paper_repro.cells import measurements
from paper_repro.cells.records import record_path, sealed, unsealed
from paper_repro.cells.tasks import DIVERGED, FINISHED, WEIGHTS

WHY = "ids follow from what makes the weights: keys at their neutral value, speed and probes stay out"
OLD = {"recipe"}
"""A field of older records: the id without the files."""


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--dry-run", "--help", "-h"), ("runs",))
    if words.flags & {"--help", "-h"}:
        print(__doc__)
        return 0
    if words.names or words.overrides:
        raise UsageError(f"{' '.join(words.names + words.overrides)}: only runs=DIR is taken; --help says more")
    paths = sorted((words.runs / "cells").glob("*/record.json"))
    if not paths:
        raise UsageError(f"{words.runs}: no records there, expected cells/<cell>/record.json; say runs=DIR")
    renamed = [rename(words.runs, path, bool(words.flags)) for path in paths]
    print(f"{sum(renamed)} of {len(paths)} records {'would be ' if words.flags else ''}renamed in {words.runs}")
    return 0


def rename(runs: Path, path: Path, dry: bool) -> bool:
    """Give the record in ``path`` today's id and form; return whether it had others."""
    try:
        content = unsealed(path)
    except CorruptFileError as error:
        raise UsageError(str(error)) from error
    new = identity.of_record(content["config"], content["provenance"].get("data") or {})
    if new is None:
        if content["status"] in (FINISHED, DIVERGED):
            raise UsageError(f"{path}: the record lacks the hash of a file that its cell has read; delete it")
        return False
    if new == content["cell"] == path.parent.name and not OLD & content.keys():
        return False
    target = record_path(runs, new).parent
    if target != path.parent and target.exists():
        raise UsageError(f"{path}: {target} exists, and both are the same cell today: delete one of them")
    if not dry:
        try:
            measurements.rename(runs, path.parent.name, new)
            if (weights := path.with_name(WEIGHTS)).is_file():
                from paper_repro.training import checkpoints  # imports torch

                checkpoints.rename_weights(weights, new)
        except CorruptFileError as error:
            raise UsageError(f"{error}; delete it, with the files beside it in {path.parent}") from error
        old, first = content["cell"], {key: content.pop(key) for key in OLD & content.keys()}
        if old != new:
            content["renamed"] = content.get("renamed") or {"from": old, "why": WHY, **first}
        write_atomically(path, sealed({**content, "cell": new}))
        path.parent.rename(target)
    return True


if __name__ == "__main__":
    sys.exit(run_main(main))
