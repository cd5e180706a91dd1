"""The pages of a site: jinja2 templates filled with what ``build.read`` found."""

import csv
import functools
import io
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

import jinja2
from markupsafe import Markup

from paper_repro.base import config as configs
from paper_repro.base import origins
from paper_repro.base.durations import duration
from paper_repro.base.errors import UsageError
from paper_repro.cells.measurements import code_of
from paper_repro.site.build import Result, Source, Use, bench_commit, damaged
from paper_repro.site.headlines import adjusted, headlines, misses
from paper_repro.tables import claims as words
from paper_repro.tables import plots
from paper_repro.tables.publish import counted as largest
from paper_repro.tables.spec import Column, Metric
from paper_repro.tables.table import FITTED, NOT_BEATEN, OFF, REDUCED, REPRODUCED, count_text
from paper_repro.tables.view import NOT_RUN, with_derived

HERE = Path(__file__).parent
PAPERS = {"nrgpt": "NRGPT", "ngpt": "nGPT", "cet": "CET", "ebt": "EBT", "cem": "CEM"}
MENU = {
    **{"index.html": "Results", "claims.html": "Claims", "figures.html": "Figures"},
    **{"papers.html": "Papers and code", "benches.html": "Speeds", "records.html": "Records"},
}
TONES = {
    **dict.fromkeys((words.HOLDS, words.SEEN, REPRODUCED), "good"),
    **dict.fromkeys((words.FAILS, words.OPPOSITE, OFF), "bad"),
    **{words.NO_DIFFERENCE: "little", words.CANNOT_TELL: "open", FITTED: "fitted"},
}
"""The colour of a word, as a class of the style sheet; of others it is ``mute``."""
ORDER = (*words.VERDICTS, REPRODUCED, FITTED, OFF, REDUCED)
DAMAGES = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised where a file lacks something that its page shows."""
STEMS = ("figure", "figure_appendix")
PLACED = ("quantity", "verdict", "baseline", "beaten", "as_reference")
"""The keys of a row that say no place; nor do those of means, spreads and seeds."""
AUTHORS = re.compile(r"\bauthors['’]")
"""How a note names the code that the authors of a paper published."""
DEVIATIONS = re.compile(r"^#\s*Deviations:\s+(.*(?:\n#(?!\s*[A-Z][a-z]+:\s).*)*)", re.MULTILINE)
SHAPES = ("path", "rect", "circle", "line", "polyline", "polygon", "ellipse")
KEPT = frozenset(("svg", "g", "use", "defs", "clipPath", "text", "tspan", "image", *SHAPES))
"""The elements of an SVG that a page shows."""
INSIDE = ("#", "data:image/png;base64,")
"""How an address begins that leads nowhere else."""
DARK = {"ground": "#1f1f1c", "ink": "#e9e6df", "rule": "#8f8b82", "grid": "#6d6a62", "soft": "#b5b0a5"}
DARK |= {"blue": "#5ba9e6", "vermilion": "#ff8a3d", "green": "#35c69a", "purple": "#e07bb4", "violet": "#b18cff"}
COLOURS = {"#000000": "ink", "#b0b0b0": "grid", "#cccccc": "grid", plots.BASELINE.lower(): "soft"}
COLOURS |= {getattr(plots, name.upper()).lower(): name for name in DARK if name != "grid"}
"""The variable that stands for a colour in the SVG of a page; in the light each has the colour that was drawn."""
STYLE = ".drawn{color:#000}@media (prefers-color-scheme:dark){.drawn{color:var(--ink-drawn);fill:var(--ink-drawn);"
STYLE += "".join(f"--{name}-drawn:{colour};" for name, colour in DARK.items()) + "}}"


class Site:
    """The pages of a site."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        for function in (count_text, counted, duration, number, paper_name, place):
            self.environment.filters[function.__name__] = function
        self.environment.filters |= {"address": functools.partial(quote, safe="/._-+"), "median": statistics.median}
        self.environment.filters["tone"] = lambda word: TONES.get(word, "mute")
        whose = {"paper": "the paper", "ours": "a question of ours"}
        self.environment.globals |= {"menu": MENU, "source": source, "whose": whose, "bench_commit": bench_commit}

    def page(self, path: str, template: str, **given: Any) -> bytes:
        up = "../" * path.count("/")
        return self.environment.get_template(template).render(here=path, up=up, **given).encode()

    def files(self) -> dict[str, bytes]:
        """Return every file of the site by its path."""
        source, figures = self.source, list[tuple[Result, str]]()
        files = {f"static/{path.name}": path.read_bytes() for path in sorted((HERE / "static").iterdir())}
        for result in source.results:
            drawn = {stem: drawing(result, stem) for stem in STEMS if f"{stem}.svg" in result.files}
            try:
                files[result.page] = self.artifact(result, drawn)
            except DAMAGES as error:
                raise damaged(result.path, error) from error
            whole = {stem: shown for stem, shown in drawn.items() if isinstance(shown, Drawing)}
            figures += [(result, stem) for stem in whole]
            files |= {f"figures/{result.id}/{result.scale}/{stem}.svg": whole[stem].svg.encode() for stem in whole}
            files |= {f"files/{result.id}/{result.scale}/{name}": content for name, content in result.files.items()}
        used = [use.result for uses in source.uses.values() for use in uses]
        quoted = quoted_papers(source)
        given: dict[str, Any] = {
            "index.html": self.index(),
            "claims.html": self.claims(),
            "figures.html": {"figures": figures, "papers": papers_of(source.results)},
            "papers.html": {"papers": quoted, "names": [(paper, paper_name(paper)) for paper in quoted]},
            "benches.html": {"benches": [self.bench(name) for name in source.benches]},
            "records.html": {"papers": sorted(papers_of(used))},
        }
        files |= {name: self.page(name, name, **given[name]) for name in MENU}
        for cell, kept in source.records.items():
            files[f"records/{cell}.html"] = self.record(cell)
            files |= {f"files/cells/{cell}/{name}": content for name, content in kept.attachments.items()}
        return files

    def index(self) -> dict[str, Any]:
        source, papers = self.source, papers_of(self.source.results)
        documents = [result.document for result in source.results]
        missing = sorted(source.artifacts.keys() - {result.id for result in source.results})
        others = [name.partition("/")[0] for name in (*missing, *source.faults)]
        rows = headlines(documents, lambda cell: kept.record if (kept := source.records.get(cell)) else None)
        found = counted(claim["verdict"] for document in documents for claim in document["claims"])
        return {
            "papers": list(dict.fromkeys([*papers, *((paper, paper_name(paper)) for paper in others)])),
            "headlines": [row for row in rows if row.claim],
            "misses": misses(claim for table in largest(documents) for claim in table["claims"]),
            "verdicts": [(word, word) for word, _ in found],
            "missing": [source.artifacts[name] for name in missing],
        }

    def claims(self) -> dict[str, Any]:
        results = self.source.results
        found = [(result, claim) for result in results for claim in result.document["claims"]]
        tested = {claim.catalogue for artifact in self.source.artifacts.values() for claim in artifact.claims}
        return {
            "claims": [(*one, p) for one, p in zip(found, adjusted([claim for _, claim in found]), strict=True)],
            "papers": papers_of(result for result, _ in found),
            "verdicts": [(word, word) for word, _ in counted(claim["verdict"] for _, claim in found)],
            "untested": [claim for name, claim in words.listed().items() if name not in tested],
        }

    def bench(self, name: str) -> Markup:
        try:
            return Markup(self.page("", "bench.html", name=name, bench=self.source.benches[name]).decode())
        except DAMAGES as error:
            raise UsageError(
                f"results/bench/{name}.json: damaged: {str(error)!r} is missing or wrong; measure it again: "
                f"scripts/bench.py {name.partition('.')[0]} --json FILE"
            ) from error

    def artifact(self, result: Result, drawn: Mapping[str, Any]) -> bytes:
        scale = result.artifact.scales.get(result.scale.partition("+")[0]) if result.artifact else None
        others = [one for one in self.source.results if one.id == result.id and one.scale != result.scale]
        given = {"drawn": drawn, "about": scale.about if scale else "", "others": others, **grid(result, self.source)}
        return self.page(result.page, "artifact.html", result=result, **given)

    def record(self, cell: str) -> bytes:
        kept, uses = self.source.records[cell], self.source.uses.get(cell, ())
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, value in origins.leaves(kept.record.config):
            section, _, key = name.partition(".")
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            sections.setdefault(section if key else "", []).append((key or name, text))
        commits = [str(code["commit"] or "unknown") for code in code_of(kept.record)]
        given = {"kept": kept, "record": kept.record, "uses": uses, "papers": papers_of(use.result for use in uses)}
        curves = {name: curve(points) for name, points in sorted(kept.record.curves.items())}
        given |= {"curves": {name: shown for name, shown in curves.items() if shown}, "sections": sections}
        given["later"] = sorted({*commits[1:]} - {commits[0]})
        return self.page(f"records/{cell}.html", "record.html", cell=cell, **given)


class Drawing(NamedTuple):
    """A figure as a page shows it."""

    svg: str
    width: float
    rows: list[dict[str, str]]
    """The rows of figure.csv."""
    marks: list[Any]
    """Place, label and values of each mark, as ``Figure.write`` noted them."""


def drawing(result: Result, stem: str) -> Drawing | str:
    """Return a published figure without scripts and outside addresses, in colours that a dark page changes.

    It is the reason instead where the file is no SVG.
    """
    try:
        root = ElementTree.fromstring(result.files[f"{stem}.svg"])
    except ElementTree.ParseError as error:
        return str(error)
    if _plain(root.tag) != "svg" or not root.get("viewBox"):
        return "no svg element with a viewBox"
    try:
        marks = json.loads(next(root.iter("{http://purl.org/dc/elements/1.1/}description")).text or "")["marks"]
    except (StopIteration, ValueError, LookupError, TypeError):
        marks = []
    _clean(root)
    text = result.files.get(f"{stem}.csv", b"").decode(errors="replace")
    rows = [{name: str(value) for name, value in row.items() if name} for row in csv.DictReader(io.StringIO(text))]
    width = float(re.sub(r"[^\d.]", "", root.attrib.pop("width", "")) or 500.0)
    root.attrib.pop("height", None)
    label = f"Figure of {result.id}: {result.document['title']}"
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "class": "drawn", "role": "img", "aria-label": label}
    style = ElementTree.Element("style")
    style.text = STYLE
    root.insert(0, style)
    return Drawing(ElementTree.tostring(root, encoding="unicode"), width, rows, marks)


def _plain(name: object) -> str:
    return str(name).rpartition("}")[2]


def _clean(node: ElementTree.Element) -> None:
    """Drop namespaces, elements that draw nothing, handlers and outside addresses; name colours by variables."""
    node.tag = _plain(node.tag)
    attributes = {_plain(name): " ".join(value.split()) for name, value in node.attrib.items()}
    node.attrib.clear()
    for name, value in attributes.items():
        outside = name == "href" and not value.startswith(INSIDE)
        if not (name.startswith("on") or outside or "url(" in value.replace("url(#", "")):
            node.set(name, re.sub("#[0-9a-fA-F]{6}", _coloured, value) if name == "style" else value)
    for child in list(node):
        if _plain(child.tag) in KEPT:
            _clean(child)
        else:
            node.remove(child)
    if node.tag not in ("text", "tspan"):
        node.text = None
        for child in node:
            child.tail = None


def _coloured(match: re.Match[str]) -> str:
    name = COLOURS.get(match[0].lower())
    return match[0] if name is None else f"var(--{name}-drawn,{match[0]})"


def grid(result: Result, source: Source) -> dict[str, Any]:
    """Return the lines of a table: for each place and baseline the numbers of each quantity, and their records."""
    artifact, rows = result.artifact, result.document["rows"]
    specs = artifact.quantities if artifact else {}
    there = dict.fromkeys(key for row in rows for key in row if key not in PLACED)
    axes = [key for key in there if not key.endswith(("_mean", "_std", "_seeds"))]
    judged = {row["verdict"] for row in rows} - {"", NOT_RUN, REDUCED} != set()
    quantities, lines = list[dict[str, Any]](), dict[tuple[str, ...], dict[str, Any]]()
    for name in dict.fromkeys(row["quantity"] for row in rows):
        own, spec = [row for row in rows if row["quantity"] == name], specs.get(name)
        printed, measured = (any(row.get(f"{whose}_mean") is not None for row in own) for whose in ("paper", "own"))
        reference = any(row.get("reference_mean") is not None for row in own)
        kinds = ["paper"] * printed + ["reference"] * reference + ["ours"] * measured
        kinds += ["as reference"] * reference + ["verdict"] * (judged and printed and measured)
        setting = isinstance(spec, Column) and not printed
        head = {"name": name, "title": spec.title if spec else name, "kinds": kinds, "setting": setting}
        quantities.append(
            {**head, "unit": getattr(spec, "unit", ""), "spec": spec, "is_metric": isinstance(spec, Metric)}
        )
    quantities.sort(key=lambda one: (isinstance(one["spec"], Column), one["setting"]))
    for row in rows:
        at, repeat = [str(row.get(axis, "")) for axis in axes], 0
        while row["quantity"] in lines.get((*at, row.get("baseline", ""), str(repeat)), {"rows": {}})["rows"]:
            repeat += 1
        key = (*at, row.get("baseline", ""), str(repeat))
        line = lines.setdefault(key, {"at": at, "baseline": row.get("baseline", ""), "rows": {}})
        line["rows"][row["quantity"]] = row
    cells: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for cell, at in result.document["cells"].items():
        key = ("baseline", str(at["baseline"])) if "baseline" in at else tuple(str(at.get(axis, "")) for axis in axes)
        cells.setdefault(key, []).append((at["seed"], cell))
    for line in lines.values():
        key = ("baseline", line["baseline"]) if line["baseline"] else tuple(line["at"])
        line["cells"] = sorted(cells.get(key, []))
        line["labels"] = labels(result, dict(zip(axes, line["at"], strict=True)), line["baseline"])
        line["records"] = [
            (seed, cell, with_derived(kept.record, artifact.metrics if artifact else {}) if kept else None)
            for seed, cell, kept in ((seed, cell, source.records.get(cell)) for seed, cell in line["cells"])
        ]
        line["entries"] = [
            {"text": entry(one["spec"], kind, line["rows"].get(one["name"])), "kind": kind, "quantity": one}
            for one in quantities
            for kind in one["kinds"]
        ]
    titles = [artifact.axes[axis].title if artifact and axis in artifact.axes else axis for axis in axes]
    return {"axes": titles, "quantities": quantities, "lines": list(lines.values())}


def labels(result: Result, place: Mapping[str, str], baseline: str) -> list[str]:
    """Return the labels of a place; the first axis that a baseline leaves open carries its name."""
    known = result.artifact.axes if result.artifact else {}
    found = [
        known[axis].values[at].label if axis in known and at in known[axis].values else at for axis, at in place.items()
    ]
    if baseline and found:
        specs = result.artifact.baselines if result.artifact else {}
        at = found.index("") if "" in found else 0
        found[at] = f"Baseline: {specs[baseline].label if baseline in specs else baseline}"
    return found


def entry(spec: Metric | Column | None, kind: str, row: Mapping[str, Any] | None) -> str:
    """Return a number of a row as the printed table has it."""
    if row is None or kind in ("verdict", "as reference"):
        return str((row or {}).get("verdict" if kind == "verdict" else "as_reference") or "")
    whose = {"ours": "own"}.get(kind, kind)
    mean, std = row.get(f"{whose}_mean"), row.get(f"{whose}_std")
    text = spec.text if spec else number
    if mean is None:
        return NOT_RUN if kind == "ours" and row["verdict"] == NOT_RUN else ""
    if kind == "paper" and isinstance(spec, Column):
        return f"{mean:.{spec.digits}f}{spec.unit}"
    if std is None or (row.get("baseline") and text(std) == text(0.0)):
        return f"{mean:.10g}" if kind == "paper" and getattr(spec, "format", "f") == "f" else text(mean)
    return f"{text(mean)} ± {text(std)}" + NOT_BEATEN * (kind == "ours" and row.get("beaten") is False)


def paper_name(paper: str) -> str:
    return PAPERS.get(paper, paper)


def papers_of(results: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((result.paper, paper_name(result.paper)) for result in results))


def counted(found: Iterable[str]) -> list[tuple[str, int]]:
    """Count words, in the order in which pages name them."""
    return sorted(Counter(found).items(), key=lambda one: (ORDER.index(one[0]) if one[0] in ORDER else len(ORDER), one))


def number(value: float) -> str:
    """Write a number of any size in at most six digits: 1,234,567 or 0.0123457."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def place(use: Use) -> str:
    """Write a place with the labels of the table: "GPT, width 64"."""
    artifact, at = use.result.artifact, {name: str(value) for name, value in use.place.items() if name != "seed"}
    if "baseline" in at:
        return labels(use.result, {"": ""}, at["baseline"])[0]
    known = artifact.axes if artifact else {}
    told = {axis: value for axis, value in at.items() if axis not in known or len(known[axis].values) > 1}
    named = zip(told, labels(use.result, told, ""), strict=True)
    return ", ".join(
        f"{known[axis].title} {label}" if axis in known and re.fullmatch(r"[\d.,e-]+", label) else label
        for axis, label in named
    )


def quoted_papers(source: Source) -> dict[str, tuple[dict[str, list[Result]], dict[str, str]]]:
    """Return for each paper the notes on its authors' code, and the deviations that our experiments state."""
    found: dict[str, tuple[dict[str, list[Result]], dict[str, str]]] = {paper: ({}, {}) for paper in PAPERS}
    for result in source.results:
        for note in filter(AUTHORS.search, result.document["notes"]):
            found.setdefault(result.paper, ({}, {}))[0].setdefault(note, []).append(result)
    for path in sorted((configs.CONF / "experiment").rglob("*.yaml")):
        name = path.relative_to(configs.CONF / "experiment").with_suffix("").as_posix()
        if text := deviation(path.read_text(encoding="utf-8")):
            found.setdefault(name.partition("/")[0], ({}, {}))[1][name] = text
    return {paper: told for paper, told in found.items() if any(told)}


def deviation(text: str) -> str:
    """Return the deviations that the head of an experiment's file states; empty for none."""
    head = re.match(r"(?:#.*\n)*", text)
    found = DEVIATIONS.search(head[0] if head else "")
    return " ".join(line.lstrip("# ").strip() for line in found[1].splitlines()) if found else ""


def curve(points: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finite points of a curve, each with its place in a drawing of 320 by 130; nothing for none."""
    pairs = zip(points.get("step", ()), points.get("value", ()), strict=False)
    kept = [(float(step), float(value)) for step, value in pairs if math.isfinite(step) and math.isfinite(value)]
    if not kept:
        return {}
    steps, values = zip(*kept, strict=True)
    wide, high = max(steps) - min(steps), max(values) - min(values)
    dots = [
        (
            f"{8 + 304 * (step - min(steps)) / wide if wide else 160:.1f}",
            f"{112 - 102 * (value - min(values)) / high if high else 61:.1f}",
            f"step {number(step)}: {value:.6g}",
        )
        for step, value in kept
    ]
    return {"dots": dots, "steps": steps, "values": values}
