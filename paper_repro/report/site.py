"""Builds the whole report in memory, then writes it: the same results give the same bytes."""

from dataclasses import dataclass
from pathlib import Path

from paper_repro.report import folder
from paper_repro.report.artifact_page import artifact_page, files_of
from paper_repro.report.benches_page import benches_page
from paper_repro.report.claims_page import claims_page
from paper_repro.report.figures_page import figures_page
from paper_repro.report.index_page import index_page
from paper_repro.report.origins import Origins
from paper_repro.report.papers_page import papers_page
from paper_repro.report.record_page import attachments_of, record_page, record_path, records_page
from paper_repro.report.shell import MENU
from paper_repro.report.source import Source, read

STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Built:
    """What a build has written."""

    folder: Path
    pages: int
    bytes: int
    damaged: tuple[str, ...]
    """Cells whose record could not be read."""


def build(results: Path, to: Path) -> Built:
    """Write the report of a folder of results.

    Args:
        results: with tables below PAPER/ARTIFACT/SCALE and records below cells; it is only read.
        to: a folder that holds a report already, is empty, or is not there.

    Raises:
        UsageError: a table or bench is damaged, or ``to`` is not ours, is in use or cannot be written.
    """
    folder.refuse_foreign(to)
    source = read(results)  # where it is damaged, no folder is made
    files = files_of_report(source)
    with folder.opened(to):
        folder.write(to, files)
    pages = sum(name.endswith(".html") for name in files)
    return Built(to, pages, sum(map(len, files.values())), tuple(sorted(source.damaged)))


def files_of_report(source: Source) -> dict[str, bytes]:
    """Return every file of the report by its path below the folder."""
    files = {f"static/{path.name}": path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file()}
    pages = {
        "index.html": index_page(source),
        "claims.html": claims_page(source),
        "figures.html": figures_page(source),
        "papers.html": papers_page(source),
        "benches.html": benches_page(source),
        "records.html": records_page(source),
    }
    assert pages.keys() == MENU.keys()
    files |= pages
    for result in source.results:
        files |= {result.page: artifact_page(result, source), **files_of(result)}
    origins = Origins()
    for cell, kept in source.records.items():
        files |= {record_path(cell): record_page(cell, source, origins), **attachments_of(cell, kept)}
    return files
