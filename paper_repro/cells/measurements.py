"""What a cell came to: its record, what probes have measured on its weights since, and which files it depends on.

Weights are trained once and kept.  A probe that a config gained later measures these weights, and what it found lies in
a record of its own, whose config is the probe's node: ``cells/<cell>/probes/<probe>.json``; its attachments are in the
folder of that name.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.files import CorruptFileError, sha256_of_bytes, write_atomically
from paper_repro.cells import leases, records
from paper_repro.cells.leases import LeasedError
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.tasks import FINISHED, NOT_FINITE, Cell, Findings, Outcome

_log = logging.getLogger(__name__)

PROBES, CODE, LISTED = "probes", ("commit", "dirty"), "code"
"""Where a record's provenance names the code of the probes that measured after the training, what it says, and where it
names the list of files (``identity.keep_code``)."""
TASK = ""
"""Names the task itself among the probes that have to measure again."""
ASIDE = "replaced"
"""The folder, below that of all runs, of results that were run again."""
_SHOWN = 4
"""How many files that have changed a line names."""


@dataclass(frozen=True)
class Result:
    """A cell's record with all that its probes have measured, and the probes that are still to measure."""

    record: Record
    lacking: list[str]

    @property
    def done(self) -> bool:
        """Whether nothing is left to train or to measure."""
        return self.record.done and not self.lacking


def measurement_path(root: Path, cell: str, probe: str) -> Path:
    return record_path(root, cell).parent / "probes" / f"{probe}.json"


def write(root: Path, cell: Cell, name: str, findings: Findings, seconds: float, provenance: Mapping[str, Any]) -> None:
    """Write what the probe of that name found on a cell's weights, its attachments first.

    ValueError: it is too large, or a field is of another kind.
    """
    outcome = Outcome(FINISHED, findings.metrics, unavailable=findings.unavailable, seconds=seconds)
    outcome.attachments = {file: sha256_of_bytes(content) for file, content in findings.attachments.items()}
    outcome.measured = {name: [*findings.metrics, *findings.unavailable, *findings.attachments]}
    config = {identity.PROBES: {name: cell.config[identity.PROBES][name]}}
    record = records.from_outcome(cell.id, config, outcome, provenance)
    content = records.content(record)
    (probe,) = record.measured
    path = measurement_path(root, cell.id, probe)
    for file, attachment in findings.attachments.items():
        write_atomically(path.with_suffix("") / file, attachment)
    write_atomically(path, content)


def find(root: Path, cell: Cell) -> Result | None:
    """Return the result of a cell below ``root``; None where it has no record.

    A metric of a probe that the plan wants with other settings is left out: it was measured in another way.
    """
    record = records.find(root, cell.id)
    if record is None:
        return None
    planned = identity.probes(cell.config) if record.status == FINISHED else {}
    if not planned:
        return Result(record, [])
    record, measured = _without_stale(record, planned)
    for name, probe in planned.items():
        if (found := _read(measurement_path(root, cell.id, probe))) is not None:
            measured.add(name)
            record = _with(record, found)
    return Result(record, [name for name in planned if name not in measured])


def whole(root: Path, record: Record) -> Record:
    """Return a record with all that probes have measured on its weights since, also probes that its config lacks.

    Of two with one name, the one of the config counts, else the one that measured last.
    """
    files = (record_path(root, record.cell).parent / "probes").glob("*.json")
    paths = sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
    own, found = identity.probes(record.config) if paths else {}, dict[str, Record]()
    for one in filter(None, map(_read, paths)):
        ((name, probe),) = identity.probes(one.config).items()
        if own.get(name, probe) == probe:
            found[name] = one
    for one in found.values() if record.status == FINISHED else ():
        record = _with(record, one)
    return record


def is_done(root: Path, cell: Cell) -> bool:
    """Return whether the cell has a result below ``root``, everything measured."""
    found = find(root, cell)
    return found is not None and found.done


def to_fill(root: Path, cell: Cell) -> list[str]:
    """Return the probes that have to measure again because a metric was not available when they did; of a cell without
    probes ``[TASK]``.  A metric that was not finite would be so again.
    """
    found = find(root, cell)
    if found is None or found.record.status != FINISHED:
        return []
    lacking = {name for name, reason in found.record.unavailable.items() if reason != NOT_FINITE}
    planned = identity.probes(cell.config)
    if not planned or not lacking:
        return [TASK] if lacking else []
    owners = {probe for probe, given in found.record.measured.items() if {*given} & lacking}
    return [name for name, probe in planned.items() if probe in owners or not found.record.measured]


def _without_stale(record: Record, planned: Mapping[str, str]) -> tuple[Record, set[str]]:
    """Return the record without the metrics of probes that are wanted with other settings, and the probes it has."""
    own = identity.probes(record.config)
    measured = {name for name, probe in planned.items() if own.get(name) == probe}
    stale = [probe for name, probe in own.items() if planned.get(name, probe) != probe]
    if not stale:
        return record, measured
    gone = {given for probe in stale for given in record.measured.get(probe, ())}
    kept = {name: node for name, node in record.config["probes"].items() if own.get(name) not in stale}
    return replace(_keeping(record, gone), config={**record.config, identity.PROBES: kept}), measured


def _keeping(record: Record, gone: set[str]) -> Record:
    return replace(
        record,
        metrics={name: value for name, value in record.metrics.items() if name not in gone},
        unavailable={name: reason for name, reason in record.unavailable.items() if name not in gone},
        attachments={name: digest for name, digest in record.attachments.items() if name not in gone},
    )


def _with(record: Record, found: Record) -> Record:
    """Return a record with what a probe has measured since; what the record said of it before is void."""
    ((name, probe),) = identity.probes(found.config).items()
    void = {*found.metrics, *found.unavailable, *found.attachments, *record.measured.get(probe, ())}
    nodes = {one: node for one, node in (record.config.get(identity.PROBES) or {}).items() if one != name}
    measured = {one: given for one, given in record.measured.items() if one != probe}
    config = {**record.config, identity.PROBES: nodes}
    return joined(replace(_keeping(record, void), config=config, measured=measured), found)


def _code(provenance: Mapping[str, Any]) -> dict[str, Any]:
    listed = {LISTED: provenance[LISTED]} if LISTED in provenance else {}
    return {name: provenance.get(name) for name in CODE} | listed


def code_of(record: Record) -> list[Mapping[str, Any]]:
    """Return the commits, with their dirty flags, that a record's numbers come from: the training's first."""
    return [_code(record.provenance), *_of_probes(record).values()]


def _of_probes(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the code of the probes that have measured after the training, by their ids."""
    return dict(record.provenance.get(PROBES, {}))


def joined(record: Record, other: Record) -> Record:
    """Return a cell's record with what the probes of another record of the same cell have measured beyond its own."""
    own, theirs = (identity.probes(one.config) for one in (record, other))
    more = {name for name in theirs if name not in own}
    if not more:
        return record
    nodes = {**record.config.get(identity.PROBES, {}), **{name: other.config[identity.PROBES][name] for name in more}}
    known, trained = _of_probes(other), _code(other.provenance)
    code = {theirs[name]: known.get(theirs[name], trained) for name in sorted(more)}
    is_told = other.measured and (record.measured or not own)
    return replace(
        record,
        metrics={**other.metrics, **record.metrics},
        unavailable={**other.unavailable, **record.unavailable},
        attachments={**other.attachments, **record.attachments},
        measured={**other.measured, **record.measured} if is_told else {},
        config={**record.config, identity.PROBES: nodes},
        provenance=record.provenance | {PROBES: _of_probes(record) | code},
    )


def _read(path: Path) -> Record | None:
    """Return the measurement in ``path``; None where there is none, or a damaged or misplaced one, which is logged."""
    try:
        found = records.read(path)
        probes = [*identity.probes(found.config).values()]
        if found.cell != path.parent.parent.name or not probes == [*found.measured] == [path.stem]:
            raise CorruptFileError(f"{path}: it is the measurement of another probe or cell")
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptFileError as error:
        _log.warning("%s; the probe measures again", error)
        return None


# Results that come from other code or data than there is now.


def changed_files(root: Path, record: Record) -> list[str] | None:
    """Return the files that a result depends on and that have changed since; None where its record names none."""
    names = [each.get(LISTED) for each in code_of(record)]
    code = [identity.other_code(root, name) if name else None for name in names]
    data = identity.other_data(record.config, record.provenance.get("files") or {})
    found = {path for one in code if one is not None for path in one} | {*data}
    return None if None in code and not found else sorted(found)


def changed(root: Path, cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Return the cells whose results below ``root`` come from other files than there are now, each with these."""
    found, there = dict[str, list[str]](), records.begun(root)
    for cell in cells:
        result = find(root, cell) if cell.id in there else None
        if result is not None and result.record.done and (files := changed_files(root, result.record)):
            found[cell.id] = files
    return found


def told(found: Mapping[str, Sequence[str]]) -> str:
    """Say how many results come from other files, and from which; nothing where none do."""
    files = sorted({file for files in found.values() for file in files})
    if not files:
        return ""
    shown = ", ".join(files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")
    count, them = ("1 result comes", "it") if len(found) == 1 else (f"{len(found)} results come", "them")
    return f"{count} from other code or data than there is now ({shown}); --again makes {them} anew"


def set_aside(root: Path, cells: Iterable[str]) -> None:
    """Move the folders of cells below ``replaced``, so that they are run again; a cell that another runner is running,
    or has run anew meanwhile, stays as it is.
    """
    for cell in cells:
        home, target = record_path(root, cell).parent, root / ASIDE / cell
        with contextlib.suppress(LeasedError), leases.hold(root, [cell]):
            record = records.find(root, cell)
            if record is None or not changed_files(root, whole(root, record)):
                continue
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            own = [path for path in home.iterdir() if path.name != "lease" and not path.name.startswith(".")]
            for path in sorted(own, key=lambda path: path.name == "record.json"):  # last, in case this is cut off
                path.rename(target / path.name)
