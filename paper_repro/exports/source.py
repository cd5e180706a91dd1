"""Which cell is exported, whereto and as what: checked without torch, so that a wrong word is refused at once."""

from pathlib import Path

from paper_repro.base.errors import UsageError, default_runs
from paper_repro.cells.records import Record, check_has_weights
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import view

FORMAT = "paper-repro"
HUGGING_FACE = "huggingface"


def check(path_or_id: str | Path, to: Path, form: str, runs: str | Path | None = None) -> None:
    """Check what an export is asked for.

    Raises:
        UsageError: an unknown format, a folder that is not empty, or a cell that ``find`` refuses.
    """
    if form not in (FORMAT, HUGGING_FACE):
        raise UsageError(f"--format {form}: expected {FORMAT} or {HUGGING_FACE}")
    _check_empty(to)
    find(path_or_id, runs)


def find(path_or_id: str | Path, runs: str | Path | None = None) -> tuple[Path, Record]:
    """Return the folder and the record of a cell that has trained a model.

    Args:
        path_or_id: the folder of a finished cell, or a cell's id.
        runs: the runs folder in which an id is looked up; None: $PAPER_REPRO_RUNS, else runs/ here.

    Raises:
        UsageError: there is no such cell, it did not finish, trains no model, or its weights are not there.
    """
    folder, record = view.find_record(path_or_id, [default_runs() if runs is None else Path(runs).expanduser()])
    if record.status != FINISHED:
        raise UsageError(f"{folder}: the cell is {record.status} ({record.note}), expected finished: it has no weights")
    if "model" not in record.config or "module" not in record.config:
        raise UsageError(f"{folder}: the cell trains no model, it counts or measures: there are no weights")
    check_has_weights(folder, record)
    return folder, record


def _check_empty(folder: Path) -> None:
    """Check that nothing lies in a folder, or that it does not exist.

    Raises:
        UsageError: something does, or it is no folder.
    """
    if folder.is_dir():
        if found := sorted(path.name for path in folder.iterdir()):
            raise UsageError(f"--to {folder}: not empty ({found[0]} lies there); give a new folder")
    elif folder.exists() or folder.is_symlink():
        raise UsageError(f"--to {folder}: found something else there, expected a new folder")
