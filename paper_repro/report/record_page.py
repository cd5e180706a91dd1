"""The page of one record: what was run, what came out, and where that comes from."""

import json
from collections.abc import Mapping
from typing import Any

from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.made_of import count_text
from paper_repro.base.durations import duration
from paper_repro.cells.measurements import code_of
from paper_repro.cells.records import Record
from paper_repro.report.curves import curve
from paper_repro.report.markup import Markup, tag
from paper_repro.report.origins import Origins, leaves
from paper_repro.report.shell import facts, filters, link, number, page, paper_name, table
from paper_repro.report.source import Kept, Source, Use

LIST = "records.html"
NO_CURVES = "This record has no curves."


def record_path(cell: str) -> str:
    return f"records/{cell}.html"


def attachment_path(cell: str, name: str) -> str:
    return f"files/cells/{cell}/{name}"


def attachments_of(cell: str, kept: Kept) -> dict[str, bytes]:
    """Return what lies beside a record, by the path below the report."""
    return {attachment_path(cell, name): content for name, content in kept.attachments.items()}


def record_page(cell: str, source: Source, origins: Origins) -> bytes:
    """Return the page."""
    kept, uses, here = source.records[cell], source.uses.get(cell, ()), record_path(cell)
    record = kept.record
    papers = dict.fromkeys(paper_name(use.result.paper) for use in uses)
    over = [*(tag("span", paper) for paper in papers), tag("span", f"seed {record.seed}"), tag("code", cell)]
    metrics = [[name, tag("span", f"{value:.10g}", class_="value")] for name, value in sorted(record.metrics.items())]
    metrics += [[name, tag("span", f"n/a: {why}", class_="soft")] for name, why in sorted(record.unavailable.items())]
    drawn = [drawing for name, points in sorted(record.curves.items()) if (drawing := curve(name, points))]
    sections = [
        (
            "Stands in",
            tag("ul", [tag("li", _use(here, use)) for use in uses], class_="uses") if uses else "In no table.",
        ),
        ("Metrics", table(["metric", "value"], metrics, "plain") if metrics else "This record has no metrics."),
        ("Curves", tag("div", drawn, class_="curves") if drawn else NO_CURVES),
        ("Beside the record", _attachments(here, cell, kept)),
        ("Config", _config(record, uses, origins)),
        ("Where it comes from", _provenance(kept)),
    ]
    title = _title(uses) or f"Cell {cell}"
    content = [tag("section", tag("h2", name), part) for name, part in sections if part]
    return page(here, f"record {cell[:8]}", tag("p", over, class_="over"), tag("h1", title), _facts(record), content)


def _title(uses: tuple[Use, ...]) -> str:
    """Return the labels of a cell's place in the first table that it stands in."""
    return place_text(uses[0]) if uses else ""


def place_text(use: Use) -> str:
    """Write a place with the labels that the table has: "GPT, width 64"."""
    artifact: Artifact | None = use.result.artifact
    if "floor" in use.place:
        name = str(use.place["floor"])
        return f"Floor: {artifact.floors[name].label if artifact and name in artifact.floors else name}"
    found = []
    for axis, value in use.place.items():
        known = artifact.axes[axis] if artifact and axis in artifact.axes else None
        if axis == "seed" or (known and len(known.values) == 1):
            continue
        label = known.values[value].label if known and value in known.values else str(value)
        bare = label.replace(".", "").replace(",", "").isdigit()
        found.append(f"{known.title} {label}" if known and bare else label)
    return ", ".join(found)


def _use(here: str, use: Use) -> list[Any]:
    result = use.result
    where = link(here, result.page, tag("code", result.id), f", scale {result.scale}")
    return [where, " ", place_text(use), f", seed {use.place.get('seed', '')}"]


def _facts(record: Record) -> Markup:
    counted = None if record.parameters is None else f"{record.parameters:,} ({count_text(record.parameters)})"
    if record.parameters is not None and record.parameters < 1000:
        counted = str(record.parameters)
    return facts(
        [
            ("Status", record.status),
            ("Note", record.note),
            ("Parameters", counted),
            ("Multiply-adds", None if record.multiply_adds is None else f"{record.multiply_adds:,}"),
            ("Time", f"{duration(record.seconds)} ({record.seconds:g} s)" if record.seconds else ""),
            ("Memory", f"{record.peak_memory_mib:,.1f} MiB" if record.peak_memory_mib else ""),
        ]
    )


def _attachments(here: str, cell: str, kept: Kept) -> Markup:
    items = []
    for name, digest in sorted(kept.record.attachments.items()):
        if name not in kept.attachments:
            items.append(tag("li", name, ": not here, or damaged", class_="missing"))
            continue
        where = attachment_path(cell, name)
        label = link(here, where, name)
        size = f" {len(kept.attachments[name]):,} bytes, SHA-256 {digest[:12]}"
        image = tag("img", src=f"../{where}", alt=f"{name} of cell {cell}", loading="lazy")
        picture = tag("div", image, class_="picture") if name.endswith(".png") else None
        items.append(tag("li", label, tag("span", size, class_="soft"), picture))
    return tag("ul", items, class_="beside") if items else Markup()


def _config(record: Record, uses: tuple[Use, ...], origins: Origins) -> Markup:
    """Return each value of the config; behind it where it is set today, as far as that is known."""
    found = next((known for use in uses if (known := origins.of(record.config, use))), {})
    rows, section = [], None
    for key, value in leaves(record.config).items():
        first = key.partition(".")[0]
        if first != section and "." in key:
            rows.append(tag("tr", tag("th", first, colspan=3 if found else 2, scope="colgroup"), class_="section"))
        section = first
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown = [tag("td", key.removeprefix(f"{first}.")), tag("td", text)]
        origin = found.get(key, "")
        rows.append(tag("tr", shown, tag("td", origin, class_=_changed(origin)) if found else None))
    headers = ["key", "value", "set by"] if found else ["key", "value"]
    head = tag("thead", tag("tr", [tag("th", header, scope="col") for header in headers]))
    note = "The files of this version set it so; where the record has another value, today's stands here."
    body = tag("div", tag("table", head, tag("tbody", rows), class_="config"), class_="scroll", tabindex="0")
    return tag("div", tag("p", note, class_="soft") if found else None, body)


def _changed(origin: str) -> str | None:
    return "changed" if origin.startswith("today ") else None


def _provenance(kept: Kept) -> Markup:
    record = kept.record
    given: Mapping[str, Any] = record.provenance
    commit = tag("code", str(given.get("commit") or "unknown"))
    dirty = " with uncommitted changes" if given.get("dirty") else ""
    commits = [str(code["commit"] or "unknown") for code in code_of(record)]
    later = sorted({*commits[1:]} - {commits[0]})
    versions = ", ".join(f"{name} {version}" for name, version in sorted((given.get("versions") or {}).items()))
    data = [
        tag("div", name, " ", tag("code", str(digest))) for name, digest in sorted((given.get("data") or {}).items())
    ]
    renamed = "; ".join(f"{name}: {value}" for name, value in sorted(record.renamed.items()))
    return facts(
        [
            ("Commit", [commit, dirty]),
            ("List of its code", tag("code", given["code"]) if "code" in given else "not recorded"),
            ("Probes measured later, at", [[tag("code", one), " "] for one in later]),
            ("Machine", given.get("device")),
            ("Versions", versions),
            ("Compiled", given.get("compiled")),
            ("Data, SHA-256", data),
            ("Renamed", renamed),
            ("Seal", [tag("code", kept.seal), " fits the content"]),
        ]
    )


def records_page(source: Source) -> bytes:
    """Return the list of all records."""
    rows, papers = [], dict[str, str]()
    for cell, kept in source.records.items():
        uses = source.uses.get(cell, ())
        names = list(dict.fromkeys(use.result.id for use in uses))
        place = place_text(uses[0]) if uses else ""
        of_papers = list(dict.fromkeys(use.result.paper for use in uses))
        papers |= {paper: paper_name(paper) for paper in of_papers}
        shown = [link(LIST, record_path(cell), tag("code", cell[:8])), ", ".join(names), place, kept.record.seed]
        shown += [kept.record.status, number(round(kept.record.seconds, 1))]
        text = " ".join([cell, *names, place, kept.record.status]).lower()
        cells = [tag("td", one) for one in shown]
        rows.append(tag("tr", cells, data_entry=True, data_paper="|".join(of_papers), data_text=text))
    rows += [
        tag("tr", tag("td", cell), tag("td", f"damaged: {reason}", colspan=5, class_="missing"), data_entry=True)
        for cell, reason in sorted(source.damaged.items())
    ]
    headers = ("record", "stands in", "place", "seed", "status", "seconds")
    head = tag("thead", tag("tr", [tag("th", header, scope="col") for header in headers]))
    body = tag("div", tag("table", head, tag("tbody", rows), class_="plain"), class_="scroll", tabindex="0")
    lead = "One record for each cell: a resolved config, one seed, metrics, curves, versions, commit and a seal."
    controls = filters("records", {"paper": ("Paper", dict(sorted(papers.items())))})
    return page(LIST, "Records", tag("h1", "Records"), tag("p", lead, class_="lead"), controls, body, wide=True)
