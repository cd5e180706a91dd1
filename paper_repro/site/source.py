"""Reads what a site shows: published tables with their figures, records, benches and the catalogue."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
TABLES = ("table.csv", "table.md", "table.tex")
KINDS = {
    **dict.fromkeys(("artifact", "title", "source", "scale", "made_of", "total"), str),
    **dict.fromkeys(("rows", "claims", "notes"), list),
    **dict.fromkeys(("cells", "summary"), dict),
}
"""What pages read of a table.json."""


class Result(NamedTuple):
    """One published table with the files beside it."""

    path: Path
    id: str
    """The artifact's id, for example cem/table3."""
    scale: str
    document: Mapping[str, Any]
    """The content of table.json, whose kinds have been checked."""
    artifact: Artifact | None
    """None where the catalogue has no such artifact, or a faulty one."""
    files: Mapping[str, bytes]

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]

    @property
    def page(self) -> str:
        return f"artifacts/{self.id}/{self.scale}.html"

    @property
    def most_seeds(self) -> int:
        """The seeds of the number that has most: planned looks add to the seeds of the scale."""
        return max((int(row.get("own_seeds") or 0) for row in self.document["rows"]), default=0)


class Kept(NamedTuple):
    """A record on the disk."""

    record: Record
    seal: str
    attachments: Mapping[str, bytes]
    """Files beside it that have the hash that the record names."""


class Use(NamedTuple):
    """A place of a cell in a table."""

    result: Result
    place: Mapping[str, Any]
    """The values of the axes and the seed, or floor and seed."""


class Source(NamedTuple):
    """Everything that a site shows."""

    results: tuple[Result, ...]
    records: Mapping[str, Kept]
    damaged: Mapping[str, str]
    """Reasons why records cannot be read, by cell."""
    artifacts: Mapping[str, Artifact]
    faults: Mapping[str, str]
    """Errors of YAML files, by artifact."""
    benches: Mapping[str, Mapping[str, Any]]
    uses: Mapping[str, Sequence[Use]]
    """The places of each cell in tables."""
    is_reference: bool
    """Whether it is the committed reference, not a user's runs."""

    @property
    def counted_claims(self) -> list[Mapping[str, Any]]:
        """The claims whose verdicts are counted: of each artifact, those of its largest scale."""
        return [claim for table in counted(result.document for result in self.results) for claim in table["claims"]]


def read(root: Path) -> Source:
    """Read a folder of results.

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
    return Source(results, kept, damaged, artifacts, faults, benches, uses, root.resolve() == RESULTS.resolve())


def _catalogue() -> tuple[dict[str, Artifact], dict[str, str]]:
    """Return every artifact, and the errors of those whose file has one."""
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
        for key, kind in KINDS.items():
            if not isinstance(document[key], kind):
                raise ValueError(f"'{key}' is no {kind.__name__}")
        if (document["artifact"], document["scale"]) != (name, scale.partition("+")[0]):
            raise ValueError(f"it is the table of {document['artifact']} at scale {document['scale']}")
        if wrong := next((cell for cell in document["cells"] if CELL.fullmatch(cell) is None), ""):
            raise ValueError(f"{wrong[:80]!r} is no id of a cell (16 digits of base 16)")
        if not all(isinstance(one["verdict"], str) for one in (*document["rows"], *document["claims"])):
            raise ValueError("a row or claim whose verdict is no text")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise damaged(path, error) from error
    files = {}
    for other in (*FIGURES, *TABLES):
        with contextlib.suppress(FileNotFoundError, CorruptFileError):
            files[other] = read_regular(path.with_name(other), MOST_BYTES)
    artifact = artifacts.get(name)
    known = None if artifact is None or scale.partition("+")[0] not in artifact.scales else artifact
    return Result(path, name, scale, document, known and known.at_scale(scale.partition("+")[0]), files)


def damaged(path: Path, error: Exception) -> UsageError:
    """Return the error of a table.json that cannot be shown, with the command that mends it."""
    root, name, scale = path.parents[3], f"{path.parents[2].name}/{path.parents[1].name}", path.parent.name
    command = f"python scripts/reproduce.py {name} scale={scale} --render"
    advice = f"render it again with '{command} runs={root}'"
    if root.resolve() == RESULTS.resolve():
        advice = f"bring it back with 'git checkout -- FILE', or render it again with '{command}'"
    return UsageError(f"{path}: damaged: {type(error).__name__}: {error}; {advice}")


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
        beside, record = {}, measurements.whole(root, record)
        for name in sorted(record.attachments):
            with contextlib.suppress(CorruptFileError):
                if (content := records.attachment(root, record, name)) is not None:
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
