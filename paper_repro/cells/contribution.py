"""Checks the records that somebody else made, before ``--publish`` adds them to the committed ones.

Nobody can prove from a record that a run took place.  These checks refuse what contradicts itself, this repository or
its published records; ``reproduce.py --verify`` then trains the first steps of accepted cells anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paper_repro.base import identity
from paper_repro.base.configs import without_seeds
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, git
from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED

SLACK = 0.1
"""The largest relative difference of a loss curve's last point and the final metric; some curves are of a part of the
split, which makes at most 0.05 in the published records."""


@dataclass(frozen=True)
class Finding:
    """The checks of one record."""

    cell: str
    artifact: str
    """The artifact and scale that plan the cell."""
    refused: str
    """Why the record is refused; "" where it is accepted."""


def check(folder: Path, published: Sequence[Record], planned: Mapping[str, str], code: Path) -> list[Finding]:
    """Check all records below a folder: somebody's ``runs``, its folder ``cells``, or the folder of one cell.

    Args:
        published: the committed records.
        planned: ``PlannedCell.settings`` to the artifact and scale that plan it; ids need data, which may be absent.
        code: this repository, whose history knows the commits of records.
    """
    paths = sorted(path for depth in ("", "*/", "cells/*/") for path in folder.glob(f"{depth}record.json"))
    if not paths:
        raise UsageError(f"{folder}: no record.json there; give a folder runs, runs/cells or runs/cells/<cell>")
    found, by_settings = [], {_settings(record): record for record in published}
    for path in paths:
        cell, artifact = path.parent.name, ""
        try:
            record = records.read(path)
            for name in record.attachments:
                records.attachment(path.parents[2], record, name)
            artifact = planned.get(identity.settings(record.config), "")
            reasons = [*_of_origin(record, cell, code), *_of_numbers(record, published, by_settings)]
            if not artifact:
                reasons.append("no artifact plans this cell")
        except CorruptFileError as error:
            reasons = [str(error).removeprefix(f"{path}: ").partition(";")[0]]
        found.append(Finding(cell, artifact, "; ".join(reasons)))
    return found


def _of_origin(record: Record, folder: str, code: Path) -> Iterator[str]:
    """Yield what contradicts the id of a record, and why nobody could run the same code."""
    if record.cell != folder:
        yield f"the record is of cell {record.cell}"
    expected = identity.of_record(record.config, record.provenance.get("data") or {})
    if expected is None:
        yield "it does not tell the hashes of its data"
    elif expected != record.cell:
        yield f"the id of this config is {expected}"
    commit = record.provenance.get("commit")
    if not commit:
        yield "no commit"
    elif record.provenance.get("dirty"):
        yield "uncommitted changes"
    elif git(code, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        yield f"no commit {commit[:10]} here"


def _of_numbers(record: Record, published: Sequence[Record], by_settings: Mapping[str, Record]) -> Iterator[str]:
    """Yield what contradicts the record's own curves, or the published records."""
    if record.status != FINISHED:
        yield f"the cell is {record.status}"
    steps = (record.config.get("training") or {}).get("steps")
    for name, curve in record.curves.items():
        if not curve["step"]:
            continue
        if steps and curve["step"][-1] != steps:
            yield f"{name} ends at step {curve['step'][-1]} of {steps}"
        last, final = curve["value"][-1], record.metrics.get(name)
        if final is not None and abs(last - final) > SLACK * max(abs(last), abs(final)):
            yield f"{name} is {final:.4g}, its curve ends at {last:.4g}"
    if not record.metrics:
        yield "no metric"
    if curves := _loss_curves(record):
        same = (other.cell for other in published if other.cell != record.cell and _loss_curves(other) == curves)
        yield from (f"the loss curves are of published cell {cell}" for cell in same)
    other = by_settings.get(_settings(record), record)
    if other.parameters != record.parameters:
        yield f"{record.parameters} parameters, {other.parameters} in published records of these settings"


def _loss_curves(record: Record) -> dict[str, dict[str, list[float]]]:
    """Return the loss curves of a record that are long enough to tell two runs apart."""
    return {name: curve for name, curve in record.curves.items() if "loss" in name and len(curve["value"]) > 4}


def _settings(record: Record) -> str:
    """Return the hash of the settings of a record without its seeds."""
    return identity.settings(without_seeds(record.config))
