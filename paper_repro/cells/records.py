"""Run records: one JSON file a cell, at most 20 kB, whole or absent, and sealed with its own hash.

A seal is a hash, which anybody can compute: it shows that bits have flipped, not who wrote them.  A record that comes
from elsewhere is therefore checked field by field before anything is done with it.
"""

import contextlib
import errno
import json
import logging
import math
import os
import platform
import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from paper_repro.base import identity
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import CodeState, CorruptFileError, read_regular, sha256_of_bytes, write_atomically
from paper_repro.base.identity import MACHINE, canonical_json, fingerprint
from paper_repro.cells.planned import FILE_NAME, check_attachment_name, fits, not_negative, on_gpu
from paper_repro.cells.tasks import (
    ATTACHMENT_BYTES,
    CHECKPOINTS,
    DIVERGED,
    FAILED,
    FINISHED,
    NOT_FINITE,
    OUT_OF_MEMORY,
    Outcome,
    saved_in,
)

_log = logging.getLogger(__name__)

LIMIT_BYTES = 20_000
CURVE_POINTS = 60
NOTE_CHARACTERS = 500
SEAL = "sha256"
STACKS = "stacks"
"""The folder, below that of all runs, of what cells that run together share."""
BEGUN = "begun.json"
"""In the folder of cells that run together, by their ids the code and the data that they were begun with."""
PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "scipy", "hydra-core", "triton")
STATUSES = (FINISHED, DIVERGED, OUT_OF_MEMORY, FAILED)
MOST_NESTING, MOST_KEYS = 24, 1_500
MOST_ATTACHMENTS = 50


# Records.


@dataclass(frozen=True)
class Record:
    """What one cell came to, and where that comes from."""

    cell: str
    status: str
    """finished | diverged | oom | failed (the last two are run again by the next call)."""
    seed: int
    config: dict[str, Any]
    """Resolved, without what changes speed alone, spelled as it was when the cell ran."""
    metrics: dict[str, float]
    curves: dict[str, dict[str, list[float]]]
    """Name to {"step": [...], "value": [...]}, thinned."""
    parameters: int | None
    multiply_adds: int | None
    seconds: float
    peak_memory_mib: float | None
    note: str
    provenance: dict[str, Any] = field(default_factory=dict)
    attachments: dict[str, str] = field(default_factory=dict)
    """File name to SHA-256 of what lies beside the record."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Metric to what it lacks: such a metric is printed as "n/a"."""
    measured: dict[str, list[str]] = field(default_factory=dict)
    """Id of a probe to the metrics and files that it gave; older records do not tell them apart."""
    renamed: dict[str, str] = field(default_factory=dict)
    """The id under which the record was first written, and when and why it was given another."""

    @property
    def done(self) -> bool:
        """Whether this is a result: a cell that diverged is one, a cell that crashed is not."""
        return self.status in (FINISHED, DIVERGED)


def from_outcome(cell: str, config: Mapping[str, Any], outcome: Outcome, provenance: Any) -> Record:
    """Return the record of an outcome."""
    metrics = {name: float(value) for name, value in outcome.metrics.items() if math.isfinite(value)}
    unavailable, ids = dict(outcome.unavailable), identity.probes(config)
    if outcome.status == FINISHED:  # else its note says what happened
        unavailable |= {name: NOT_FINITE for name in outcome.metrics if name not in metrics}
    return Record(
        cell=cell,
        status=outcome.status,
        seed=int(config.get("seed", 0)),
        config=identity.recorded(config),
        metrics=metrics,
        curves={name: thin(points, CURVE_POINTS) for name, points in outcome.curves.items()},
        parameters=outcome.parameters,
        multiply_adds=outcome.multiply_adds,
        seconds=round(outcome.seconds, 3),
        peak_memory_mib=None if outcome.peak_memory_mib is None else round(outcome.peak_memory_mib, 1),
        note=outcome.note[:NOTE_CHARACTERS].encode(errors="replace").decode(),
        provenance={
            **provenance,
            "data": dict(outcome.data_hashes),
            **({"compiled": outcome.compiled[:NOTE_CHARACTERS]} if outcome.compiled else {}),
        },
        attachments=dict(outcome.attachments),
        unavailable={name: reason[:NOTE_CHARACTERS] for name, reason in unavailable.items()},
        measured={ids[name]: sorted(given) for name, given in outcome.measured.items() if name in ids},
    )


def thin(points: Sequence[tuple[int, float]], count: int) -> dict[str, list[float]]:
    """Keep at most ``count`` of the points, evenly spaced, first and last among them; six significant digits."""
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    if len(finite) > count:
        finite = [finite[round(index * (len(finite) - 1) / (count - 1))] for index in range(count)]
    return {"step": [step for step, _ in finite], "value": [float(f"{value:.6g}") for _, value in finite]}


def write(path: Path, record: Record) -> None:
    """Write a record atomically; raises as ``content``."""
    write_atomically(path, content(record))


def content(record: Record) -> bytes:
    """Return a sealed record, its curves thinned further if it is over the limit; ValueError: it is over the limit even
    without curves, or a field is not what ``read`` would accept.
    """
    fields = asdict(record)
    check_fields(fields)
    points = CURVE_POINTS
    while len(encoded := sealed(fields)) > LIMIT_BYTES:
        if points == 0:
            raise ValueError(f"the record of cell {record.cell} has {len(encoded)} bytes, the limit is {LIMIT_BYTES}")
        points = points // 2 if points > 4 else 0
        for name, curve in fields["curves"].items():
            pairs = list(zip(curve["step"], curve["value"], strict=True))
            fields["curves"][name] = thin(pairs, points) if points else {"step": [], "value": []}
    return encoded


def read(path: Path) -> Record:
    """Return the record in ``path``.

    Raises:
        FileNotFoundError: there is none.
        CorruptFileError: a byte differs from what was written, or a field holds what a record cannot say.
    """
    again = "delete it to run the cell again"
    try:
        fields: dict[str, Any] = json.loads(raw := read_regular(path, LIMIT_BYTES))
        del fields[SEAL]
        if sealed(fields) != raw:
            raise CorruptFileError(f"{path}: its hash does not fit its content")
        check_fields(fields)
    except CorruptFileError as error:
        raise CorruptFileError(f"{error}; {again}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(f"{path}: not a run record: {error}; {again}") from error
    return Record(**fields)


def find(root: Path, cell: str) -> Record | None:
    """Return the record of a cell below ``root``, or None; a damaged or misplaced one is logged and counts as none."""
    path = record_path(root, cell)
    try:
        record = read(path)
        expected = identity.of_record(record.config, record.provenance.get("data") or {}) if record.done else None
        if record.cell != cell:
            raise CorruptFileError(f"{path}: it is the record of cell {record.cell}; delete it to run the cell again")
        if expected not in (None, cell):
            why = "its id does not follow from its config, as another version of the code wrote it"
            raise CorruptFileError(f"{path}: {why}: delete it to run the cell again")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptFileError as error:
        _log.warning("%s", error)
        return None
    return record


def every(root: Path) -> list[Record]:
    """Return all records below ``root`` that ``find`` returns, in the order of their cells."""
    return [record for cell in sorted(begun(root)) if (record := find(root, cell)) is not None]


def attachment(root: Path, record: Record, name: str) -> bytes | None:
    """Return the file of that name beside a record; None where the record names none; CorruptFileError: the file is
    absent, or not the one that the record names.
    """
    if name not in record.attachments:
        return None
    folder = record_path(root, record.cell).parent
    check_attachment_name(name)
    found = [path for path in (folder / name, *sorted(folder.glob(f"probes/*/{name}"))) if path.is_file()]
    for path in found:
        if sha256_of_bytes(content := read_regular(path, ATTACHMENT_BYTES)) == record.attachments[name]:
            return content
    absent = f"{folder / name}: the record beside it names this file, which is absent"
    what = f"{found[0]}: not the file that the record beside it names" if found else absent
    raise CorruptFileError(f"{what}; delete the record to run the cell again")


# The folder of records.


def record_path(root: Path, cell: str) -> Path:
    return root / "cells" / cell / "record.json"


def begun(root: Path) -> set[str]:
    """Return the cells that have a folder below ``root``, by one listing: no other has a record or a lease there."""
    try:
        return {path.name for path in (root / "cells").iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def work_folder(root: Path, cells: Sequence[str]) -> Path:
    """Return the folder where cells that run together keep what they need to go on."""
    if len(cells) == 1:
        return record_path(root, cells[0]).parent
    return root / STACKS / fingerprint(list(cells))


def disk_message(error: OSError, runs: Path) -> str:
    """Return one line that says what happened below ``runs`` and what the user can do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{runs}: no space left; nothing finished was lost. Free some space, or move the folder and say runs=DIR"
    return f"{runs}: {error}"


def open_runs_folder(runs: Path) -> int:
    """Make sure that records can be written below ``runs``; return the time of its file system, in nanoseconds."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs, buffering=0) as probe:
            probe.write(b"x" * LIMIT_BYTES)
            return os.fstat(probe.fileno()).st_mtime_ns
    except OSError as error:
        raise UsageError(f"{runs}: cannot write there ({error.strerror}); say runs=DIR for another folder") from error


def saved_steps(runs: Path, cells: Collection[str]) -> dict[str, int]:
    """Return the last saved step of those of ``cells`` that have one, whether they train alone or in a stack."""
    found = {cell: _last_step(record_path(runs, cell).parent / CHECKPOINTS) for cell in cells}
    for path in (runs / STACKS).glob(f"*/{BEGUN}"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # it ends, or is damaged
            step = _last_step(path.parent / CHECKPOINTS)
            found.update({cell: max(step, found[cell]) for cell in json.loads(path.read_bytes()) if cell in found})
    return {cell: step for cell, step in found.items() if step}


def _last_step(folder: Path) -> int:
    return max(saved_in(folder), default=0)


# Where a record comes from, and its seal.


def provenance(device: str, code: CodeState) -> dict[str, Any]:
    """Say from which code and on which machine a run comes, without the host's name and without the environment."""
    return {"commit": code.commit, "dirty": code.dirty, "versions": dict(versions()), "device": device}


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on, read once in a process."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def processor_name() -> str:
    """Return what Linux calls the first processor; where the system does not say, its architecture."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.machine()


def device(config: Mapping[str, Any]) -> str:
    """Return the name of a cell's device, ``Intel Xeon, 1 of 2 threads``; of a GPU it says whether TF32 was used."""
    machine, torch = config.get(MACHINE) or {}, sys.modules.get("torch")
    if on_gpu(machine) and torch is None:
        return "a GPU"
    if on_gpu(machine) and torch is not None and torch.cuda.is_available():
        devices = machine.get("devices", 1)
        name = torch.cuda.get_device_name(devices[0] if isinstance(devices, list) else 0)
        return f"{name}, float32 products {'in TF32' if machine.get('tf32') else 'in full'}"
    threads = machine.get("threads", 1) or os.cpu_count() or 1
    return f"{processor_name()}, {threads} of {os.cpu_count()} threads"


def sealed(content: dict[str, Any]) -> bytes:
    """Return a JSON object as bytes, with the hash of its content among its keys."""
    return canonical_json({**content, SEAL: seal(content)}).encode() + b"\n"


def seal(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, whatever the order of its keys."""
    return sha256_of_bytes(canonical_json(content).encode())


# What each field may hold.


def check_fields(content: Mapping[str, Any]) -> None:
    """Check kind and size of every field of a record, given as a dict without its seal."""
    for name in content:
        if name not in _FIELDS:
            raise UsageError(f"unknown field {str(name)[:100]!r}{nearest(str(name)[:100], _FIELDS)}")
    for name, form in _FIELDS.items():
        if name not in content and name not in _ADDED_LATER:
            raise UsageError(f"the field {name!r} is absent")
        if name in content and not fits(content[name], form):
            raise UsageError(f"the field {name!r} has a value of another kind or size")
    if (count := _keys(content, MOST_NESTING)) > MOST_KEYS:
        raise UsageError(f"{count} keys, at most {MOST_KEYS} are accepted")
    attachments = content.get("attachments") or ()
    if len(attachments) > MOST_ATTACHMENTS:
        raise UsageError(f"more than {MOST_ATTACHMENTS} attachments")
    for name in attachments:
        check_attachment_name(name)


def _keys(value: Any, levels: int) -> int:
    """Return the number of keys in all of a value, which is at most ``levels`` deep."""
    if levels == 0:
        raise UsageError(f"nested more than {MOST_NESTING} levels deep")
    count, parts = 0, value
    if isinstance(value, dict):
        if not {*map(type, value)} <= {str}:
            raise UsageError("a key that is no word")
        count, parts = len(value), value.values()
    return count + sum(_keys(part, levels - 1) for part in parts if isinstance(part, dict | list | tuple))


def _curve(value: Any) -> bool:
    whole = fits(value, {"step": [float], "value": [float]}) and value.keys() == {"step", "value"}
    return whole and len(value["step"]) == len(value["value"])


def _file_state(value: Any) -> bool:
    """Return whether a value is size, time of change and SHA-256 of a file, or of the files of a folder."""
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(fits, value, (int, int, 64)))


_CODE: dict[str, Any] = {
    "commit": (None, re.compile("[0-9a-f]{40}|[0-9a-f]{64}")),
    "dirty": (None, bool),
    "code": re.compile("[0-9a-f]{16}"),
}
_PROVENANCE: dict[str, Any] = {
    **_CODE,
    "versions": {...: 200},
    "device": 500,
    "files": {...: _file_state},
    "data": {...: 200},
    "compiled": 500,
    "probes": {...: lambda value: fits(value, _CODE) and {"commit", "dirty"} <= {*value}},
}
_FIELDS: dict[str, Any] = {
    "cell": FILE_NAME,
    "status": re.compile("|".join(STATUSES)),
    "seed": int,
    "config": Mapping,
    "metrics": {...: float},
    "curves": {...: _curve},
    "parameters": (None, int),
    "multiply_adds": (None, int),
    "seconds": not_negative,
    "peak_memory_mib": (None, not_negative),
    "note": 1_000,
    "provenance": _PROVENANCE,
    "attachments": {...: re.compile("[0-9a-f]{64}")},
    "unavailable": {...: 1_000},
    "measured": {...: [200]},
    "renamed": {...: 1_000},
}
"""The form of each field (``planned.fits``)."""
_ADDED_LATER = ("provenance", "attachments", "unavailable", "measured", "renamed")
"""Fields that the oldest records lack."""
