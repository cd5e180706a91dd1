"""Reads a folder of results, writes the folder of a site, and makes the rows of the headline table.

``report.json`` lists the files of a site; only these are replaced.  The same results give the same bytes.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paper_repro.base import configs
from paper_repro.base.errors import RESULTS, UsageError
from paper_repro.base.files import CorruptFileError
from paper_repro.cells import measurements, records
from paper_repro.cells.records import SEAL, Record
from paper_repro.tables.publish import counted
from paper_repro.tables.spec import PAPERS
from paper_repro.tables.view import count_text

MARKER = "report.json"
CELL = re.compile(r"[0-9a-f]{16}")
FILES = ("table.md", "table.csv", "table.tex", "figure.svg", "figure.csv", "figure_appendix.svg", "figure_appendix.csv")
SHOWN = ("artifact", "title", "source", "scale", "made_of", "headline", "claims", "cells")
Table = Mapping[str, Any]


class Result(NamedTuple):
    """One table with the files beside it; ``document`` is its table.json."""

    id: str
    scale: str
    document: Table
    files: Mapping[str, bytes]

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]

    @property
    def page(self) -> str:
        return f"artifacts/{self.id}/{self.scale}.html"


class Kept(NamedTuple):
    """A record with the whole files beside it."""

    record: Record
    seal: str
    attachments: Mapping[str, bytes]


class Use(NamedTuple):
    """A place of a cell in a table: the values of the axes, or the baseline, and the seed."""

    result: Result
    place: Mapping[str, Any]


class Source(NamedTuple):
    """Everything that a site shows: by cell its record, or why it cannot be read, and its places in tables."""

    results: tuple[Result, ...]
    records: Mapping[str, Kept]
    damaged: Mapping[str, str]
    benches: Mapping[str, Mapping[str, Any]]
    uses: Mapping[str, Sequence[Use]]


def read(root: Path) -> Source:
    """Read a folder of results; raises UsageError where there is no table, or one is damaged."""
    paths = [path for path in sorted(root.glob("*/*/*/table.json")) if path.parents[2].name not in ("cells", "bench")]
    if not paths:
        advice = "make some with reproduce.py, or give a folder that has them with from=DIR"
        raise UsageError(f"{root}: no table below it (expected PAPER/ARTIFACT/SCALE/table.json); {advice}")
    results = tuple(_result(root, path) for path in paths)
    uses: dict[str, list[Use]] = {}
    for result in results:
        for cell, place in result.document["cells"].items():
            uses.setdefault(cell, []).append(Use(result, place))
    benches = {path.stem: read_bench(path) for path in sorted((root / "bench").glob("*.json"))}
    return Source(results, *_records(root), benches, uses)


def _result(root: Path, path: Path) -> Result:
    folder = path.parent
    name, scale = folder.parent.relative_to(root).as_posix(), folder.name
    try:
        document = json.loads(path.read_bytes())
        if absent := [key for key in SHOWN if key not in document]:
            raise ValueError(f"it lacks '{absent[0]}'")
        if wrong := [cell for cell in document["cells"] if CELL.fullmatch(cell) is None]:
            raise ValueError(f"{wrong[0][:80]!r} is no id of a cell (16 digits of base 16)")
        files = {one: (folder / one).read_bytes() for one in FILES if one == FILES[0] or (folder / one).is_file()}
    except (OSError, ValueError, TypeError) as error:
        command = f"python scripts/reproduce.py {name} scale={scale} --render"
        where = "" if root.resolve() == RESULTS.resolve() else f" runs={root}"
        raise UsageError(f"{path}: damaged: {error}; render it again with '{command}{where}'") from error
    return Result(name, scale, document, files)


def _records(root: Path) -> tuple[dict[str, Kept], dict[str, str]]:
    found, broken = {}, {}
    for path in sorted(root.glob("cells/*/record.json")):
        cell = path.parent.name
        try:
            record = records.read(path)
            if record.cell != cell or CELL.fullmatch(cell) is None:
                raise CorruptFileError(f"it is the record of cell {record.cell}")
        except CorruptFileError as error:
            broken[cell] = str(error).replace(f"{root}/", "")
            continue
        beside, record = {}, measurements.whole(root, record)
        for name in sorted(record.attachments):
            with contextlib.suppress(CorruptFileError):
                if (content := records.attachment(root, record, name)) is not None:
                    beside[name] = content
        found[cell] = Kept(record, json.loads(path.read_bytes())[SEAL], beside)
    return found, broken


def read_bench(path: Path) -> dict[str, Any]:
    """Return the content of a bench's file; raises UsageError where it is no JSON, or its seal does not fit."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        given = content.pop(SEAL, None)
        if (given is not None or "commit" in content) and given != (whole := records.seal(content)):
            raise ValueError(f"its seal {given!r} does not fit its content, whose hash is {whole}")
    except (OSError, ValueError, AttributeError) as error:
        again = f"measure it again: scripts/bench.py {path.name.partition('.')[0]} --json {path.name}"
        raise UsageError(f"{path}: damaged: {error}; bring it back with 'git checkout -- FILE', or {again}") from error
    return content


def bench_commit(bench: Mapping[str, Any]) -> str:
    if not bench.get("commit"):
        return "commit unknown"
    return str(bench["commit"])[:10] + (" with uncommitted changes" if bench["dirty"] else "")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make ``files`` the site in a folder: new, empty, or one that holds a site already.

    The list names old and new files while they are written, so a build that was stopped can be repeated.
    """
    marker = folder / MARKER
    try:
        old = json.loads(marker.read_bytes())["files"] if marker.is_file() else []
        if not old and folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder}: holds files and no {MARKER} of ours; give a new or empty folder with to=DIR")
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps({"files": sorted({*old, *files})}, indent=0))
        for name in {*old} - files.keys():
            (folder / name).unlink(missing_ok=True)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        marker.write_text(json.dumps({"files": sorted(files)}, indent=0))
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be written ({error.strerror}); give to=DIR") from error


LIST = PAPERS / "headlines.yaml"
KEYS = ("claim", "name", "paper", "sentence", "replications")


class Headline(NamedTuple):
    """One row of the headline table; no ``claim`` where no table has it."""

    name: str
    paper: str
    sentence: str
    replications: Sequence[Mapping[str, str]]
    claim: Mapping[str, Any] | None
    artifact: str
    scale: str
    regime: str


def headlines(tables: Iterable[Table], record_of: Callable[[str], Record | None], path: Path = LIST) -> list[Headline]:
    """Return the rows of the headline table, each from its artifact's table of the largest scale."""
    found, by_id = list[Headline](), {table["artifact"]: table for table in counted(tables)}
    for node in configs.read(path).elements():
        configs.entries(node, KEYS)
        row = node.plain()
        artifact, _, name = row["claim"].partition("#")
        table = by_id.get(artifact, {"claims": [], "scale": ""})
        claim = next((one for one in table["claims"] if name == one["id"]), None)
        where = (claim, artifact, table["scale"], regime(table, record_of) if claim else "")
        found.append(Headline(row["name"], row["paper"], row["sentence"], row["replications"], *where))
    return found


def regime(table: Table, record_of: Callable[[str], Record | None]) -> str:
    """Return data, parameters and training tokens (or examples) a parameter of a table's models."""
    records = [record_of(cell) for cell, place in table["cells"].items() if "baseline" not in place]
    ratios, unit = list[float](), "examples"
    for record in records:
        data, training = (record.config.get(key) or {} for key in ("data", "training")) if record else ({}, {})
        if record is not None and record.parameters and "batch_size" in data and "steps" in training:
            unit = "tokens" if "window" in data else unit
            seen = training["steps"] * training.get("accumulate", 1) * data["batch_size"] * data.get("window", 1)
            ratios.append(seen / record.parameters)
    ends = [count_text(end) if end >= 10 else f"{end:.2g}" for end in (min(ratios), max(ratios))] if ratios else []
    return "; ".join([table["made_of"], *([f"{' to '.join(dict.fromkeys(ends))} {unit} a parameter"] if ends else [])])


def adjusted(claims: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return for each claim its p-value adjusted for all claims that have one (Benjamini and Hochberg, 1995)."""
    from scipy.stats import false_discovery_control

    found = iter(false_discovery_control([claim["p"] for claim in claims if claim["p"] is not None]).tolist())
    return [None if claim["p"] is None else next(found) for claim in claims]


def misses(claims: Iterable[Mapping[str, Any]]) -> str:
    """Say how many of the intervals miss by chance."""
    count = sum(1 for claim in claims if claim["estimate"] and claim["estimate"]["items"] != "exact")
    return f"Of {count} intervals of 95 %, about {count / 20:.0f} miss their true value by chance."
