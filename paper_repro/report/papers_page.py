"""Papers and code: where our experiments leave a paper, and what notes say of the authors' code.

All sentences are quoted: the first from the heads of ``conf/experiment``, the others from the notes of artifacts.
"""

import re

from paper_repro.base.config import CONF
from paper_repro.report.markup import Markup, tag
from paper_repro.report.shell import PAPERS, filters, link, page, paper_name
from paper_repro.report.source import Result, Source

HERE = "papers.html"
DEVIATIONS = "Deviations"
AUTHORS = re.compile(r"\bauthors'|\bauthors’")
"""How a note names what the authors of a paper have published beside it."""
LEAD = (
    "Where a paper and its authors' code disagree, the default here follows one of them and the other is a key of the "
    "config. These are the sentences that say so, as they stand in the notes of artifacts and at the head of each "
    "experiment's file."
)


def papers_page(source: Source) -> bytes:
    """Return the page."""
    notes = _notes(source)
    deviations = {
        path.relative_to(CONF / "experiment").with_suffix("").as_posix(): text
        for path in sorted((CONF / "experiment").rglob("*.yaml"))
        if (text := deviation(path.read_text(encoding="utf-8")))
    }
    papers = {*(name.partition("/")[0] for name in deviations), *(results[0].paper for _, results in notes)}
    ordered = [*(paper for paper in PAPERS if paper in papers), *sorted(papers - PAPERS.keys())]
    sections = []
    for paper in ordered:
        told = [_note(note, results) for note, results in notes if results[0].paper == paper]
        left = [
            _entry(paper, text, tag("p", tag("code", name), class_="over"), tag("p", text))
            for name, text in deviations.items()
            if name.partition("/")[0] == paper
        ]
        parts = [tag("h2", paper_name(paper))]
        parts += [tag("h3", "What notes say of the authors' code"), tag("ul", told, class_="quotes")] if told else []
        parts += [tag("h3", "Where our experiments deviate"), tag("ul", left, class_="quotes")] if left else []
        sections.append(tag("section", parts))
    controls = filters("sentences", {"paper": ("Paper", {paper: paper_name(paper) for paper in ordered})})
    return page(
        HERE, "Papers and code", tag("h1", "Papers and code"), tag("p", LEAD, class_="lead"), controls, sections
    )


def deviation(text: str) -> str:
    """Return what the head of an experiment's file says under "Deviations"; empty where it says nothing."""
    found: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        field = re.match(r"#\s*([A-Z][a-z]+):\s+(.*)", line)
        if field is not None and field[1] == DEVIATIONS:
            found.append(field[2])
        elif field is not None:
            if found:
                break
        elif found:
            found.append(line.lstrip("# ").strip())
    return " ".join(found)


def _notes(source: Source) -> list[tuple[str, list[Result]]]:
    """Return each note that names the authors' work, with the results that print it."""
    found: dict[str, list[Result]] = {}
    for result in source.results:
        for note in result.document["notes"]:
            if AUTHORS.search(note):
                found.setdefault(note, []).append(result)
    return list(found.items())


def _note(note: str, results: list[Result]) -> Markup:
    links = [part for one in results for part in (link(HERE, one.page, tag("code", one.id)), " ")]
    return _entry(results[0].paper, note, tag("p", links, class_="over"), tag("p", note))


def _entry(paper: str, text: str, *content: Markup) -> Markup:
    return tag("li", content, data_entry=True, data_paper=paper, data_text=text.lower())
