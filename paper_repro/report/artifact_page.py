"""The page of one artifact at one scale: numbers, figure, claims, notes, and the records behind each number."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paper_repro.artifacts.artifact import Metric
from paper_repro.artifacts.derived import with_derived
from paper_repro.cells.tasks import FINISHED
from paper_repro.report import drawing, hover
from paper_repro.report.claims_page import claims_of
from paper_repro.report.grids import OURS, PAPER, REFERENCE, VERDICT, Entry, Grid, Quantity, grid
from paper_repro.report.markup import Markup, tag
from paper_repro.report.record_page import record_path
from paper_repro.report.shell import facts, link, number, page, paper_name, scrolling, table, tally, verdict
from paper_repro.report.source import FIGURES, TABLES, Result, Source

NO_RECORD = "no record here"


def files_of(result: Result) -> dict[str, bytes]:
    """Return the table and the figure in their other forms, by the path below the report."""
    return {file_path(result, name): content for name, content in result.files.items()}


def file_path(result: Result, name: str) -> str:
    return f"files/{result.id}/{result.scale}/{name}"


def artifact_page(result: Result, source: Source) -> bytes:
    """Return the page."""
    document, here = result.document, result.page
    shown = grid(result, source.records)
    others = [one for one in source.results if one.id == result.id and one.scale != result.scale]
    head = [
        tag("p", tag("span", paper_name(result.paper)), tag("code", result.id), class_="over"),
        tag("h1", document["title"]),
        tag("p", document["source"], class_="source"),
        tally(claim["verdict"] for claim in document["claims"]),
        _facts(result, [link(here, one.page, f"scale {one.scale}") for one in others]),
    ]
    parts = [("figure", "Figure", _figure(result)), ("table", "Table", _table(here, shown, source))]
    parts += [("summary", "Computed from the table", _summary(result)), ("claims", "Claims", claims_of(result))]
    parts += [("appendix", "Appendix of the figure", _figure(result, "figure_appendix"))]
    notes = [tag("li", note) for note in document["notes"]]
    parts += [("notes", "Notes", tag("ul", notes, class_="notes") if notes else Markup())]
    parts += [("records", "Records", _records(result, shown, source))]
    there = [(name, title, content) for name, title, content in parts if content]
    menu = tag("nav", [tag("a", title, href=f"#{name}") for name, title, _ in there], class_="inside")
    sections = [tag("section", tag("h2", title), content, id=name) for name, title, content in there]
    return page(here, f"{result.id}, {result.scale}", head, menu, sections, wide=True)


def _facts(result: Result, others: Sequence[Markup]) -> Markup:
    document, artifact = result.document, result.artifact
    scale = artifact.scales.get(result.scale.partition("+")[0]) if artifact else None
    seeds, most = document.get("seeds") or (), result.most_seeds
    more = f"; at later looks up to {most} seeds" if most > len(seeds) else ""
    downloads = [
        link(result.page, file_path(result, name), name) for name in (*FIGURES, *TABLES) if name in result.files
    ]
    command = f"python scripts/reproduce.py {result.id}" + (
        "" if result.scale in ("cpu", "exact") else f" scale={result.scale}"
    )
    altered = document.get("overrides") or ()
    return facts(
        [
            ("Made from", document["made_of"]),
            (f"Scale {result.scale}", scale.about if scale else ""),
            ("Seeds", ", ".join(map(str, seeds)) + more if len(seeds) > 1 else ""),
            ("Altered by", ", ".join(map(str, altered)) and [tag("code", " ".join(map(str, altered))), ": not judged"]),
            ("Experiment", tag("code", artifact.experiment) if artifact else ""),
            ("To run it", tag("code", command)),
            ("Other scales", _joined(others)),
            ("Files", _joined(downloads)),
        ]
    )


def _joined(links: Sequence[Markup]) -> list[Any]:
    return [part for one in links for part in (one, " ")][:-1]


def _figure(result: Result, stem: str = "figure") -> Markup:
    """Return a figure as inline SVG with the numbers behind its marks; nothing where the artifact has none."""
    content = result.files.get(f"{stem}.svg")
    if content is None:
        return Markup()
    try:
        root = drawing.read(content)
        found = hover.marks(root, result.files.get(f"{stem}.csv", b""))
    except (drawing.DrawingError, ValueError) as error:
        return tag("p", f"The figure cannot be shown: {error}.", class_="missing")
    width = root.attrib.pop("width", "").removesuffix("pt")
    root.attrib.pop("height", None)
    root.attrib.update({"role": "img", "aria-label": f"Figure of {result.id}: {result.document['title']}"})
    if width.replace(".", "").isdigit():
        root.set("style", f"max-width:{round(1.35 * float(width))}px")
    marks = [
        [round(mark.x, 1), round(mark.y, 1), mark.text, *([round(mark.reach)] if mark.reach else [])] for mark in found
    ]
    what = "a picture or a mark" if any(mark.reach for mark in found) else "a mark"
    caption = f"Point at {what}, or touch it, to read its numbers." if marks else ""
    return tag(
        "figure",
        scrolling(drawing.html(root), "drawing"),
        _data(marks) if marks else None,
        tag("figcaption", caption, class_="soft") if caption else None,
        class_="figure",
    )


def _data(content: Any) -> Markup:
    """Return data for the script; nothing in it can end the element."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(f'<script type="application/json" class="marks">{safe}</script>')


def _table(here: str, shown: Grid, source: Source) -> Markup:
    """Return the paper's numbers beside ours, quantities as groups of columns."""
    if not shown.lines:
        return Markup()
    printed = any(PAPER in one.kinds or REFERENCE in one.kinds for one in shown.quantities)
    first = [tag("th", title, rowspan=2, scope="col", class_="axis") for title in shown.axes]
    second = []
    for one in shown.quantities:
        unit = one.spec.unit if isinstance(one.spec, Metric) else ""
        first.append(tag("th", one.title, colspan=len(one.kinds), scope="colgroup", class_="group", title=unit or None))
        for place, kind in enumerate(one.kinds):
            second.append(tag("th", kind if printed else "", scope="col", class_="group" if not place else None))
    rows = []
    for number_of_line, line in enumerate(shown.lines):
        labels = [tag("th", label, scope="row") for label in line.labels]
        cells = [
            tag("td", _shown(here, entry, kind, one, number_of_line, source), class_=_class(entry, kind, place))
            for one, entries in zip(shown.quantities, line.entries, strict=True)
            for place, (kind, entry) in enumerate(zip(one.kinds, entries, strict=True))
        ]
        rows.append(tag("tr", labels, cells, class_="floor" if line.floor else None))
    head = tag("thead", tag("tr", first), tag("tr", second))
    return scrolling(tag("table", head, tag("tbody", rows), class_="numbers"))


def _class(entry: Entry, kind: str, place: int) -> str:
    best = " best" if entry.best else ""
    return f"{kind.replace(' ', '-')}{best}{'' if place else ' group'}"


def _shown(here: str, entry: Entry, kind: str, quantity: Quantity, line: int, source: Source) -> Any:
    """Return what stands in a cell; our number leads to its record, or to those of its seeds."""
    if kind == VERDICT:
        return verdict(entry.verdict, entry.text) if entry.text else ""
    if kind != OURS or not entry.text or not entry.cells:
        return entry.text
    if len(entry.cells) == 1 and entry.cells[0] in source.records:
        return link(here, record_path(entry.cells[0]), entry.text)
    return tag("a", entry.text, href=f"#at-{line}", data_line=line, data_quantity=quantity.name)


def _summary(result: Result) -> Markup:
    items, rows = result.artifact.summary if result.artifact else {}, []
    for name, found in result.document["summary"].items():
        item = items.get(name)
        texts = [
            "" if found.get(key) is None else f"{found[key]:.{item.digits}f}{item.unit}" if item else number(found[key])
            for key in ("paper", "ours")
        ]
        texts[1] = f"{found.get('sign', '')}{texts[1]}"
        word = str(found.get("verdict") or "")
        rows.append([item.title if item else name, *texts, verdict(word.partition(" +")[0].partition(" -")[0], word)])
    total = result.document["total"]
    shown = table(["", "paper", "ours", "verdict"], rows, "plain") if rows else None
    return tag("div", tag("p", total) if total else None, shown) if rows or total else Markup()


def _records(result: Result, shown: Grid, source: Source) -> Markup:
    """Return every cell of every line with its own numbers; a cell without a record is named as such."""
    measured = [one for one in shown.quantities if OURS in one.kinds]
    headers = [*shown.axes, "seed", "record", *(one.title for one in measured)]
    rows = [
        tag("tr", row, id=None if follows else f"at-{line}", data_line=line)
        for line in range(len(shown.lines))
        for follows, row in enumerate(_seeds(result, shown, line, measured, source))
    ]
    if not rows:
        return Markup()
    head = tag("thead", tag("tr", [tag("th", header, scope="col") for header in headers]))
    return scrolling(tag("table", head, tag("tbody", rows), class_="seeds"))


def _seeds(
    result: Result, shown: Grid, line: int, measured: Sequence[Quantity], source: Source
) -> Iterator[list[Markup]]:
    one = shown.lines[line]
    labels = [tag("th", label, scope="row") for label in one.labels]
    if not one.cells:
        blank = [tag("td", "") for _ in measured]
        yield [*labels, tag("td", ""), tag("td", NO_RECORD, class_="missing"), *blank]
    for seed, cell in ((seed, cell) for seed, cells in sorted(one.cells.items()) for cell in cells):
        kept = source.records.get(cell)
        if kept is None:
            reason = source.damaged.get(cell)
            text = f"{NO_RECORD} ({cell}{f': {reason}' if reason else ''})"
            shows: list[Markup] = [tag("td", text, class_="missing"), *(tag("td", "") for _ in measured)]
        else:
            record = with_derived(kept.record, result.artifact.metrics) if result.artifact else kept.record
            state = "" if record.status == FINISHED else f" {record.status}"
            leading = link(result.page, record_path(cell), tag("code", cell[:8]))
            shows = [tag("td", leading, state), *(tag("td", _own(q, record), data_quantity=q.name) for q in measured)]
        yield [*labels, tag("td", seed), *shows]


def _own(quantity: Quantity, record: Any) -> str:
    """Write a record's own number, with one digit more than the mean over seeds has."""
    spec = quantity.spec
    counted: Mapping[str, Any] = {"parameters": record.parameters, "multiply_adds": record.multiply_adds}
    value = record.metrics.get(quantity.name)
    if isinstance(spec, Metric) and value is not None:
        return format(value / spec.factor, f".{spec.digits + 1}{spec.format}")
    if value is None and spec is not None and not isinstance(spec, Metric):
        value = counted.get(spec.source)
    return "" if value is None else number(value)
