"""What a report is built from: published tables with their figures, records, benches and the catalogue."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.listing import counted
from paper_repro.base.command_line import RESULTS
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, read_regular
from paper_repro.cells import measurements, records
from paper_repro.cells.records import SEAL, Record

MOST_BYTES = 20_000_000
"""The size of a table or figure above which it is not read."""
CELL = re.compile(r"[0-9a-f]{16}")
FIGURES = ("figure.svg", "figure.csv", "figure_appendix.svg", "figure_appendix.csv")
WHOSE = ("paper", "own", "reference")
"""Whose numbers a row may have."""
TABLES = ("table.csv", "table.md", "table.tex")


@dataclass(frozen=True)
class Result:
    """One published table with what lies beside it."""

    id: str
    """The artifact's id, for example cem/table3."""
    scale: str
    document: Mapping[str, Any]
    """The content of table.json, whose kinds have been checked."""
    artifact: Artifact | None
    """None where the catalogue has no such artifact, or a faulty one."""
    files: Mapping[str, bytes]
    """Table and figure in their other forms, by file name."""

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]

    @property
    def page(self) -> str:
        return f"artifacts/{self.id}/{self.scale}.html"

    @property
    def most_seeds(self) -> int:
        """The seeds of the number that has most: planned looks add to those of the scale."""
        return max((int(row.get("own_seeds") or 0) for row in self.document.get("rows", ())), default=0)


@dataclass(frozen=True)
class Kept:
    """A record as it lies on the disk."""

    record: Record
    seal: str
    attachments: Mapping[str, bytes]
    """What lies beside it and has the hash that the record names."""


@dataclass(frozen=True)
class Source:
    """All that a report says."""

    results: tuple[Result, ...]
    records: Mapping[str, Kept]
    damaged: Mapping[str, str]
    """Ids of cells whose record cannot be read, with the reason."""
    artifacts: Mapping[str, Artifact]
    faults: Mapping[str, str]
    """Ids of artifacts whose file has an error, with the error."""
    benches: Mapping[str, Mapping[str, Any]]
    uses: Mapping[str, tuple["Use", ...]] = field(default_factory=dict)
    """For each cell, the tables that it stands in."""
    is_reference: bool = True
    """Whether it is the committed reference, not somebody's runs."""

    @property
    def counted_claims(self) -> list[Mapping[str, Any]]:
        """The claims whose verdicts are counted: of each artifact, those of its largest scale."""
        return [claim for table in counted(result.document for result in self.results) for claim in table["claims"]]


@dataclass(frozen=True)
class Use:
    """A place of a cell in a table."""

    result: Result
    place: Mapping[str, Any]
    """The values of the axes and the seed, or floor and seed."""


def read(root: Path) -> Source:
    """Return what lies below a folder of results.

    Raises:
        UsageError: there is no table, or a table or bench is damaged; the message names it.
    """
    paths = [path for path in sorted(root.glob("*/*/*/table.json")) if path.parents[2].name not in ("cells", "bench")]
    if not paths:
        raise UsageError(
            f"{root}: no table below it (expected PAPER/ARTIFACT/SCALE/table.json); make some with reproduce.py, or "
            "give a folder that has them with from=DIR"
        )
    artifacts, faults = _catalogue()
    results = tuple(_result(path, artifacts) for path in paths)
    kept, damaged = _records(root)
    uses: dict[str, list[Use]] = {}
    for result in results:
        for cell, place in result.document["cells"].items():
            uses.setdefault(cell, []).append(Use(result, place))
    benches = {path.stem: read_bench(path) for path in sorted((root / "bench").glob("*.json"))}
    found = {cell: tuple(places) for cell, places in uses.items()}
    is_reference = root.resolve() == RESULTS.resolve()
    return Source(results, kept, damaged, artifacts, faults, benches, found, is_reference)


def _catalogue() -> tuple[dict[str, Artifact], dict[str, str]]:
    """Return every artifact, and of those whose file has an error that error: it must not hide the others."""
    found, faults = {}, {}
    for name in catalogue.find():
        try:
            found[name] = catalogue.load(name)
        except UsageError as error:
            faults[name] = str(error).replace(f"{catalogue.PAPERS}/", "")
    return found, faults


def _result(path: Path, artifacts: Mapping[str, Artifact]) -> Result:
    name, scale = f"{path.parents[2].name}/{path.parents[1].name}", path.parent.name
    try:
        document = json.loads(read_regular(path, MOST_BYTES))
        for problem in _problems(document, name, scale):
            raise ValueError(problem)
    except (OSError, ValueError, RecursionError) as error:
        root, command = path.parents[3], f"python scripts/reproduce.py {name} scale={scale} --render"
        advice = f"render it again with '{command} runs={root}'"
        if root.resolve() == RESULTS.resolve():
            advice = f"bring it back with 'git checkout -- FILE', or render it again with '{command}'"
        raise UsageError(f"{path}: damaged: {error}; {advice}") from error
    files = {}
    for other in (*FIGURES, *TABLES):
        try:
            files[other] = read_regular(path.with_name(other), MOST_BYTES)
        except (FileNotFoundError, CorruptFileError):
            continue
    artifact = artifacts.get(name)
    known = None if artifact is None or scale.partition("+")[0] not in artifact.scales else artifact
    return Result(name, scale, document, known and known.at_scale(scale.partition("+")[0]), files)


def _problems(document: Any, name: str, scale: str) -> Iterator[str]:
    """Yield what a table.json lacks of what pages read; what follows the first may not be asked for."""
    if not isinstance(document, dict):
        yield "expected an object with artifact, rows, claims and cells"
        return
    for key in ("artifact", "title", "source", "scale", "made_of", "total"):
        if not isinstance(document.get(key), str):
            yield f"'{key}' is no text"
    if document["artifact"] != name or document["scale"] != scale.partition("+")[0]:
        yield f"it is the table of {document['artifact']} at scale {document['scale']}"
    for key, kind in (("rows", list), ("claims", list), ("notes", list), ("cells", dict), ("summary", dict)):
        if not isinstance(document.get(key), kind):
            yield f"'{key}' is no {'list' if kind is list else 'mapping'}"
    for claim in document["claims"]:
        yield from _claim_problems(claim, ("id", "verdict", "whose", "where", "says", "because"))
    yield from _row_problems(document)


def _row_problems(document: Mapping[str, Any]) -> Iterator[str]:
    for row in document["rows"]:
        if not isinstance(row, dict) or not isinstance(row.get("quantity"), str):
            yield f"a row without a quantity: {str(row)[:80]}"
        elif not all(_is_number(row.get(f"{whose}_{what}")) for whose in WHOSE for what in ("mean", "std")):
            yield f"a row whose numbers are none: {str(row)[:200]}"
    if not all(isinstance(note, str) for note in document["notes"]):
        yield "a note that is no text"
    for cell, place in document["cells"].items():
        if CELL.fullmatch(cell) is None or not isinstance(place, dict):
            yield f"{cell[:80]!r} is no id of a cell (16 digits of base 16)"
    for item in document["summary"].values():
        if not isinstance(item, dict) or not all(_is_number(item.get(key)) for key in ("paper", "ours")):
            yield "a summary whose numbers are none"


def _claim_problems(claim: Any, keys: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(claim, dict) or not all(isinstance(claim.get(key), str) for key in keys):
        yield f"a claim without {', '.join(keys)}: {str(claim)[:80]}"
        return
    for part in claim.get("parts", ()):
        yield from _claim_problems(part, ("at", "verdict", "because"))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))


def _records(root: Path) -> tuple[dict[str, Kept], dict[str, str]]:
    found, damaged = {}, {}
    for folder in sorted((root / "cells").glob("*")):
        if CELL.fullmatch(folder.name) is None:
            continue
        path = folder / "record.json"
        try:
            record = records.read(path)
            if record.cell != folder.name:
                raise CorruptFileError(f"it is the record of cell {record.cell}")
        except FileNotFoundError:
            continue
        except CorruptFileError as error:
            damaged[folder.name] = str(error).replace(f"{root}/", "")
            continue
        beside = {}
        record = measurements.whole(root, record)
        for name in sorted(record.attachments):
            try:
                content = records.attachment(root, record, name)
            except CorruptFileError:
                continue
            if content is not None:
                beside[name] = content
        found[folder.name] = Kept(record, json.loads(path.read_bytes())[SEAL], beside)
    return found, damaged


def read_bench(path: Path) -> dict[str, Any]:
    """Return the content of a bench's file.

    Raises:
        UsageError: it is damaged: not JSON, or it names a commit and has no seal, or its seal does not fit.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        given = content.pop(SEAL, None)
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: damaged: {error}; bring it back with 'git checkout -- FILE'") from error
    if given is None and "commit" not in content:
        return content
    if given != (whole := records.seal(content)):
        raise UsageError(
            f"{path}: its seal {given!r} does not fit its content, whose hash is {whole}; measure it again: "
            f"scripts/bench.py {content.get('bench')} --json {path.name}"
        )
    return content


def bench_commit(bench: Mapping[str, Any]) -> str:
    """Return the commit that a bench was measured at, in words."""
    if not bench.get("commit"):
        return "commit unknown"
    return str(bench["commit"])[:10] + (" with uncommitted changes" if bench["dirty"] else "")
