"""Making the user's records the committed reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paper_repro.artifacts import looks
from paper_repro.artifacts.catalogue import PAPERS
from paper_repro.artifacts.plan import Plan, of_finished_looks, with_looks
from paper_repro.artifacts.render import render
from paper_repro.base import code_files
from paper_repro.base.errors import UsageError
from paper_repro.base.files import CorruptFileError, write_atomically
from paper_repro.cells import measurements, records
from paper_repro.cells.records import Record, record_path


@dataclass(frozen=True)
class Content:
    """What is to be written of one artifact."""

    plan: Plan
    """Without the further seeds of looks that are not finished."""
    records: list[Record]
    attachments: dict[Path, bytes]
    looks: looks.Taken | None


def publish(plan: Plan, runs: Path, results: Path) -> list[Path]:
    """Copy the records of a plan's cells into ``results`` and render the artifact there.

    Of a look that was begun and is not finished nothing is copied; the table says that it was begun.

    Raises:
        UsageError: as ``content``, and nothing has been written then.  Or the disk is full.
    """
    found = content(plan, runs, results)
    try:
        for path, attached in found.attachments.items():
            write_atomically(path, attached)
        for record in found.records:
            records.write(record_path(results, record.cell), record)
        if found.looks is not None:
            found.looks.write(results / plan.folder)
    except OSError as error:
        raise UsageError(
            f"{results}: cannot write there ({error.strerror}); {runs} still has every record: free some space and "
            "publish again"
        ) from error
    _, written = render(found.plan, results, None)
    return written


def content(plan: Plan, runs: Path, results: Path) -> Content:
    """Return what there is to publish of a plan.

    Raises:
        UsageError: the plan is altered, a cell has no result, a record comes from uncommitted or unknown code, or what
            lies beside it is damaged.
    """
    homes = (PAPERS, results.resolve().parent)
    if not any(plan.artifact.path.resolve().is_relative_to(home) for home in homes):
        raise UsageError(
            f"{plan.artifact.path} lies outside of the repository, whose {results.name}/ nobody could make again: move "
            f"it, with the Python file beside it, to {PAPERS / plan.artifact.id}.yaml and commit it"
        )
    if plan.altered:
        raise UsageError(f"{' '.join(plan.altering)}: an altered run is no reference; publish without overrides")
    plan = with_looks(plan, [runs / plan.folder])
    kept = looks.taken(runs / plan.folder, plan.scale.looks)
    results_of = {cell.id: measurements.find(runs, cell) for cell in plan.all_cells}
    found = {cell: result.record for cell, result in results_of.items() if result is not None and result.done}
    plan = of_finished_looks(plan, found)
    wanted = [cell.id for cell in plan.all_cells]
    found = {cell: found[cell] for cell in wanted if cell in found}
    open_cells = [cell for cell in wanted if cell not in found]
    if open_cells:
        lacking = next((cell.missing for cell in plan.all_cells if cell.id == open_cells[0] and cell.missing), "")
        first = f"run reproduce.py {plan.artifact.id} scale={plan.scale_name} runs={runs} first"
        raise UsageError(
            f"{len(open_cells)} of {len(wanted)} cells have no result in {runs} (the first: {open_cells[0]}); "
            + (f"a cell is named after its data, and here they are absent: {lacking}" if lacking else first)
        )
    _refuse_unknown_code(list(found.values()))
    whole = [record for own in found.values() if (record := _to_write(own, results)) is not None]
    attached = _attachments(list(found.values()), runs, results) | _code_lists(list(found.values()), runs, results)
    return Content(plan, whole, attached, kept)


def _refuse_unknown_code(found: Sequence[Record]) -> None:
    """Refuse records of which nobody can say from which commit they come."""
    nameless = [record.cell for record in found if not all(code["commit"] for code in measurements.code_of(record))]
    if nameless:
        raise UsageError(
            f"{len(nameless)} records name no commit, because git could not be asked when they were made (the first: "
            f"{nameless[0]}); run in a git checkout, delete them and run again"
        )
    dirty = [
        record.cell for record in found if any(code["dirty"] is not False for code in measurements.code_of(record))
    ]
    if dirty:
        raise UsageError(
            f"{len(dirty)} records come from uncommitted code, or from code that changed while they ran (the first: "
            f"{dirty[0]}); commit, delete them and run again"
        )


def _code_lists(found: Sequence[Record], runs: Path, results: Path) -> dict[Path, bytes]:
    """Return where the lists of files that records name go, and their content."""
    names = {each.get(measurements.LISTED) for record in found for each in measurements.code_of(record)} - {None}
    paths = (Path(code_files.FOLDER, f"{name}.json") for name in sorted(map(str, names)))
    return {results / path: (runs / path).read_bytes() for path in paths if (runs / path).is_file()}


def _to_write(record: Record, results: Path) -> Record | None:
    """Return the record with what other probes of the published one have measured on the same weights; None if all of
    it is published, perhaps in the spelling of an older version.
    """
    known = records.find(results, record.cell)
    whole = record if known is None else measurements.joined(record, known)
    return None if whole == known else whole


def _attachments(found: Sequence[Record], runs: Path, results: Path) -> dict[Path, bytes]:
    """Return where each attachment goes, and its content."""
    contents = {}
    for record in found:
        for name in record.attachments:
            try:
                content = records.attachment(runs, record, name)
            except CorruptFileError as error:
                raise UsageError(str(error)) from error
            assert content is not None
            contents[record_path(results, record.cell).parent / name] = content
    return contents
