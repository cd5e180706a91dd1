"""Checks the records that somebody else made, before ``--publish`` adds them to the committed ones.

Nobody can prove from a record that a run took place.  These checks refuse what contradicts itself, this repository or
its published records; ``reproduce.py --verify`` then trains the first steps of accepted cells anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paper_repro.base import identity
from paper_repro.base.configs import without_seeds
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, git
from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED

OK = "ok"
SLACK = 0.1
"""The largest relative difference of a loss curve's last point and the final metric; some curves are of a part of the
split, which makes at most 0.05 in the published records."""


@dataclass(frozen=True)
class Finding:
    """The checks of one record: ``ok``, or the reason of a refusal."""

    cell: str
    artifact: str = ""
    """The artifact and scale that plan the cell."""
    seal: str = OK
    config: str = ""
    code: str = ""
    numbers: str = ""

    @property
    def accepted(self) -> bool:
        return {self.seal, self.config, self.code, self.numbers} == {OK}


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
    curves = {_curves(record): record.cell for record in published if _curves(record)}
    parameters = {_settings(record): record.parameters for record in published}

    def found(path: Path) -> Finding:
        name = path.parent.name
        try:
            record = records.read(path)
            for attached in record.attachments:
                records.attachment(path.parents[2], record, attached)
        except CorruptFileError as error:
            return Finding(name, seal=str(error).removeprefix(f"{path}: ").partition(";")[0])
        reasons = (_of_config(record, name, planned), _of_code(record, code), _of_numbers(record, curves, parameters))
        return Finding(name, planned.get(identity.settings(record.config), ""), OK, *(next(one, OK) for one in reasons))

    return [found(path) for path in paths]


def _of_config(record: Record, folder: str, planned: Mapping[str, str]) -> Iterator[str]:
    """Yield what contradicts the id of a record."""
    if record.cell != folder:
        yield f"the record is of cell {record.cell}"
    expected = identity.of_record(record.config, record.provenance.get("data") or {})
    if expected is None:
        yield "it does not tell the hashes of its data"
    elif expected != record.cell:
        yield f"the id of this config is {expected}"
    if identity.settings(record.config) not in planned:
        yield "no artifact plans this cell"


def _of_code(record: Record, code: Path) -> Iterator[str]:
    """Yield why nobody could run the same code."""
    commit = record.provenance.get("commit")
    if not commit:
        yield "no commit"
    elif record.provenance.get("dirty"):
        yield "uncommitted changes"
    elif not _has(code, commit):
        yield f"no commit {commit[:10]} here"


@cache
def _has(code: Path, commit: str) -> bool:
    return git(code, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def _of_numbers(record: Record, curves: Mapping[str, str], parameters: Mapping[str, int | None]) -> Iterator[str]:
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
    if (other := curves.get(_curves(record), record.cell)) != record.cell:
        yield f"the loss curves are of published cell {other}"
    expected = parameters.get(_settings(record), record.parameters)
    if expected != record.parameters:
        yield f"{record.parameters} parameters, {expected} in published records of these settings"
    if not record.metrics:
        yield "no metric"


def _curves(record: Record) -> str:
    """Return the loss curves of a record as text; "" where they are too short to tell two runs apart."""
    found = {name: curve for name, curve in record.curves.items() if "loss" in name and len(curve["value"]) > 4}
    return identity.canonical_json(found) if found else ""


def _settings(record: Record) -> str:
    """Return the hash of the settings of a record without its seeds."""
    return identity.settings(without_seeds(record.config))
