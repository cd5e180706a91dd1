"""From records to files and lists: publishing, and the list of artifacts."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from paper_repro.base import identity
from paper_repro.base.errors import UsageError, duration
from paper_repro.base.files import CorruptFileError, find_data, write_atomically
from paper_repro.cells import measurements, records
from paper_repro.cells.measurements import is_done
from paper_repro.cells.records import Record, record_path
from paper_repro.cells.tasks import FINISHED
from paper_repro.tables import spec
from paper_repro.tables.claims import VERDICTS
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import EXACT, PAPERS, SCALES, Artifact, DataNeed
from paper_repro.tables.table import Grid, render


def closing(artifact: str, by_status: Mapping[str, int], seconds: float, folder: Path) -> str:
    total = sum(by_status.values())
    others = [f"{count} {status}" for status, count in by_status.items() if status != FINISHED]
    cells = f"{total} cell{'' if total == 1 else 's'}" + (f" ({', '.join(others)})" if others else "")
    claims = f"; claims: {words}" if (words := verdicts(_document(folder)["claims"])) else ""
    return f"{artifact}: {cells}, {duration(seconds)}{claims}; look at {folder / 'table.md'}"


def verdicts(found: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{count} {word}" for word, count in tally(claim["verdict"] for claim in found))


def tally(words: Iterable[str]) -> list[tuple[str, int]]:
    """Count the words of claims, in the order of ``VERDICTS``."""
    counts = Counter(words)
    return [(word, counts[word]) for word in VERDICTS if counts[word]]


def publish(plan: Plan, runs: Path, results: Path) -> list[Path]:
    """Copy the records of a plan's cells into ``results`` and render the artifact there; see ``content``."""
    whole, beside = content(plan, runs, results)
    try:
        for path, attached in beside.items():
            write_atomically(path, attached)
        for record in whole:
            path, old = record_path(results, record.cell), records.find(results, record.cell)
            records.write(path, record)
            for name in (old.attachments if old else {}).keys() - record.attachments.keys():
                path.with_name(name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{results}: cannot write there ({error.strerror}); {runs} still has every record: free some space and "
            "publish again"
        ) from error
    return render(plan, results, None)[1]


def content(plan: Plan, runs: Path, results: Path) -> tuple[list[Record], dict[Path, bytes]]:
    """Return the records to publish of a plan, and the other files with their places.

    Raises:
        UsageError: the plan is altered, a cell has no result, its code is not committed, or a file is damaged.
    """
    homes = (PAPERS, results.resolve().parent)
    if not any(plan.artifact.path.resolve().is_relative_to(home) for home in homes):
        raise UsageError(
            f"{plan.artifact.path} lies outside of the repository, so {results.name}/ could not be made again from it: "
            f"move it, with the Python file beside it, to {PAPERS / plan.artifact.id}.yaml and commit it"
        )
    if plan.altering:
        raise UsageError(f"{' '.join(plan.altering)}: altered runs cannot be published; run without overrides")
    results_of = {cell.id: measurements.find(runs, cell) for cell in plan.all_cells}
    found = [one.record for one in results_of.values() if one is not None and one.done]
    done = {record.cell for record in found}
    if lacking := [cell for cell in plan.all_cells if cell.id not in done and not is_done(results, cell)]:
        first = f"run reproduce.py {plan.artifact.id} scale={plan.scale_name} runs={runs} first"
        absent = f"a cell is named after its data, and here they are absent: {lacking[0].missing}"
        raise UsageError(
            f"{len(lacking)} of {len(plan.all_cells)} cells have no result in {runs} (the first: {lacking[0].id}); "
            + (absent if lacking[0].missing else first)
        )
    code = {record.cell: measurements.code_of(record) for record in found}
    if wrong := [cell for cell, own in code.items() if not all(one["commit"] and one["dirty"] is False for one in own)]:
        raise UsageError(
            f"{len(wrong)} records come from uncommitted code, or name no commit (the first: {wrong[0]}); commit, "
            "delete them and run again"
        )
    beside: dict[Path, bytes] = {}
    try:
        for record in found:
            for name in record.attachments:
                beside[record_path(results, record.cell).parent / name] = records.attachment(runs, record, name) or b""
    except CorruptFileError as error:
        raise UsageError(str(error)) from error
    listed = {each[measurements.LISTED] for parts in code.values() for each in parts if each.get(measurements.LISTED)}
    for path in (Path(identity.CODE, f"{name}.json") for name in sorted(listed)):
        if (runs / path).is_file():
            beside[results / path] = (runs / path).read_bytes()
    # what other probes of a published record have measured on the same weights stays
    pairs = [(records.find(results, record.cell), record) for record in found]
    whole = [measurements.joined(new, old) if old and old.curves == new.curves else new for old, new in pairs]
    return [new for (old, _), new in zip(pairs, whole, strict=True) if new != old], beside


def adopt(plan: Plan, runs: Path, results: Path) -> None:
    """Copy the published cells of a plan that have nothing below ``runs`` into it."""
    for cell in plan.all_cells:
        source, target = (record_path(root, cell.id).parent for root in (results, runs))
        if not cell.missing and not target.exists() and is_done(results, cell):
            shutil.copytree(source, target)


def listing(runs: Path, results: Path, names: Sequence[str] = (), columns: int | None = None) -> str:
    """List every artifact, or those of the ids: title, scales, data, claims, and the scales that have results.

    The error of a faulty file stands below the table, whose columns are wrapped on a terminal of so many columns.
    """
    headers = ["artifact", "title (the paper's)", "scales", "data", "reference", "yours", "the paper's claims", "ours"]
    rows, missing, faults, found = list[list[str]](), dict[str, str](), list[str](), spec.scan()
    for name in (one for one in found if not names or one in names):
        try:
            artifact = spec.load(name, found)
            *_, paper, ours = judged(artifact, results)
        except UsageError as error:
            rows.append([name, "faulty, see below", *[""] * (len(headers) - 2)])
            faults.append(f"{name} is faulty: {error}")
            continue
        absent = [need for need in artifact.needs.values() if find_data(need.path) is None]
        missing |= {f"{_folder(need.path)} ({need.title})": need.command for need in absent}
        done = [
            ", ".join(word for word in artifact.scales if (root / name / word / "table.json").is_file()) or "-"
            for root in (results, runs)
        ]
        scales = ", ".join(artifact.scales)
        rows.append([name, artifact.title, scales, _data(artifact, absent), *done, paper, ours])
    table = tabulated(rows, headers) if columns is None else Grid(headers, rows).within(columns)
    legend = [*(f"{title}: {command}" for title, command in missing.items()), *faults]
    return "\n".join([table, "", *legend] if legend else [table])


def _data(artifact: Artifact, absent: Sequence[DataNeed]) -> str:
    if not absent:
        return "present" if artifact.needs else "generated"
    wanted: dict[str, dict[str, None]] = {}
    for need in absent:
        wanted.setdefault(_folder(need.path), {}).update(dict.fromkeys(need.scales or artifact.scales))
    ready = [word for word in artifact.scales if not any(word in words for words in wanted.values())]
    missing = ", ".join(f"{name} ({', '.join(words)})" for name, words in wanted.items())
    return f"{'ready: ' + ', '.join(ready) + '; ' if ready else ''}missing {missing}"


def _folder(path: str) -> str:
    return path.partition("/")[0]


def tabulated(rows: Sequence[Sequence[str]], headers: Sequence[str], kind: str = "simple") -> str:
    return tabulate(rows, headers, tablefmt=kind, disable_numparse=True)


def judged(artifact: Artifact, root: Path) -> tuple[Path | None, str, str, str]:
    """Return the folder of the largest scale, what it is made from, and the words of the paper's claims and of ours."""
    folders = [root / artifact.id / word for word in (*SCALES, EXACT) if word in artifact.scales]
    folder = next((folder for folder in reversed(folders) if (folder / "table.json").is_file()), None)
    if folder is None:
        return None, "-", "-", "-"
    document = _document(folder)
    paper, ours = (
        verdicts(one for one in document["claims"] if one.get("whose", "paper") == whose) or "-"
        for whose in ("paper", "ours")
    )
    return folder, str(document.get("made_of", "-")), paper, ours


def _document(folder: Path) -> dict[str, Any]:
    path = folder / "table.json"
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document["claims"], list):
            raise TypeError("its claims are no list")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not the table of an artifact ({error}); render or publish it again") from error
    return document


def counted(tables: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tables whose verdicts are counted: of each artifact its largest scale's, none that is altered."""
    found, sizes = dict[str, Mapping[str, Any]](), (*SCALES, EXACT)
    for table in tables:
        known = found.get(table["artifact"])
        if not table.get("overrides") and (not known or sizes.index(table["scale"]) > sizes.index(known["scale"])):
            found[table["artifact"]] = table
    return list(found.values())
