"""The pages of a site: jinja2 templates filled with results, records and benches."""

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

from paper_repro.base import configs
from paper_repro.base.errors import RESULTS, UsageError, duration
from paper_repro.cells.measurements import code_of
from paper_repro.exports import card
from paper_repro.site.files import (
    Result,
    Source,
    Use,
    adjusted,
    bench_commit,
    damaged,
    headlines,
    listed,
    misses,
    read,
    write,
)
from paper_repro.tables import claims as words
from paper_repro.tables import plots
from paper_repro.tables.publish import counted as largest
from paper_repro.tables.spec import Column, Metric
from paper_repro.tables.table import FITTED, NOT_BEATEN, OFF, REDUCED, REPRODUCED, count_text
from paper_repro.tables.view import NOT_RUN, with_derived

HERE = Path(__file__).parent
EXAMPLES = RESULTS / "models"  # the folders of scripts/model_examples.py
PAPERS = {"nrgpt": "NRGPT", "ngpt": "nGPT", "cet": "CET", "ebt": "EBT", "cem": "CEM"}
MENU = {
    **{"index.html": "Results", "claims.html": "Claims", "figures.html": "Figures"},
    **{"models.html": "Models", "benches.html": "Speeds", "records.html": "Records"},
}
TONES = {
    **dict.fromkeys((words.HOLDS, words.SEEN, REPRODUCED), "good"),
    **dict.fromkeys((words.FAILS, words.OPPOSITE, OFF), "bad"),
    **{words.NO_DIFFERENCE: "little", words.CANNOT_TELL: "open", FITTED: "fitted"},
}
ORDER = (*words.VERDICTS, REPRODUCED, FITTED, OFF, REDUCED)
DAMAGES = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of a file that lacks something which its page shows."""
PLACED = ("quantity", "verdict", "baseline", "beaten", "as_reference")  # keys of a row that say no place
SHAPES = ("path", "rect", "circle", "line", "polyline", "polygon", "ellipse")
KEPT = frozenset(("svg", "g", "use", "defs", "clipPath", "text", "tspan", "image", *SHAPES))
DARK = {"ground": "#1f1f1c", "ink": "#e9e6df", "rule": "#8f8b82", "grid": "#6d6a62", "soft": "#b5b0a5"}
DARK |= {"blue": "#5ba9e6", "vermilion": "#ff8a3d", "green": "#35c69a", "purple": "#e07bb4", "violet": "#b18cff"}
COLOURS = {"#000000": "ink", "#b0b0b0": "grid", "#cccccc": "grid", plots.BASELINE.lower(): "soft"}
COLOURS |= {getattr(plots, name.upper()).lower(): name for name in DARK if name != "grid"}
VARIABLES = {colour: f"var(--{name}-drawn,{colour})" for colour, name in COLOURS.items()}
"""The variables that stand for colours in the SVG of a page; in the light each has the colour that was drawn."""
STYLE = ".drawn{color:#000}@media (prefers-color-scheme:dark){.drawn{color:var(--ink-drawn);fill:var(--ink-drawn);"
STYLE += "".join(f"--{name}-drawn:{colour};" for name, colour in DARK.items()) + "}}"


class Built(NamedTuple):
    """A written site; ``damaged`` are the cells whose record could not be read."""

    folder: Path
    pages: int
    bytes: int
    damaged: tuple[str, ...]


def build(results: Path, to: Path) -> Built:
    """Write the site of a folder of results."""
    listed(to)
    files = Site(source := read(results)).files()
    write(to, files)
    count = sum(name.endswith(".html") for name in files)
    return Built(to, count, sum(map(len, files.values())), tuple(sorted(source.damaged)))


class Site:
    """The pages of a site."""

    def __init__(self, source: Source) -> None:
        self.source = source
        options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self.environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, **options)
        filters = (count_text, counted, duration, number, paper_name, place)
        self.environment.filters |= {one.__name__: one for one in filters}
        self.environment.filters |= {"address": functools.partial(quote, safe="/._-+"), "median": statistics.median}
        self.environment.filters["tone"] = lambda word: TONES.get(word, "mute")
        self.environment.globals |= {"menu": MENU, "source": source, "bench_commit": bench_commit}

    def page(self, path: str, template: str, **given: Any) -> bytes:
        up = "../" * path.count("/")
        return self.environment.get_template(template).render(here=path, up=up, **given).encode()

    def files(self) -> dict[str, bytes]:
        source, figures = self.source, list[tuple[Result, str]]()
        files = {f"static/{path.name}": path.read_bytes() for path in sorted((HERE / "static").iterdir())}
        for result in source.results:
            place = f"{result.id}/{result.scale}"
            try:
                label = f"Figure of {result.id}: {result.document['title']}"
                stems = [stem for stem in ("figure", "figure_appendix") if f"{stem}.svg" in result.files]
                drawn = {stem: drawing(result.files, stem, label) for stem in stems}
                files[result.page] = self.artifact(result, drawn)
            except DAMAGES as error:
                raise damaged(result.path, error) from error
            for stem, shown in drawn.items():
                if isinstance(shown, Drawing):
                    figures.append((result, stem))
                    files[f"figures/{place}/{stem}.svg"] = shown.svg.encode()
            files |= {f"files/{place}/{name}": content for name, content in result.files.items()}
        papers, claims, models = papers_of(source.results), self.claims(), shipped()
        given: dict[str, Any] = {
            "index.html": claims | self.index(),
            "claims.html": claims,
            "figures.html": {"figures": figures, "papers": papers},
            "models.html": {"models": models},
            "benches.html": {"benches": [self.bench(name) for name in source.benches]},
            "records.html": {"papers": papers},
        }
        files |= {name: self.page(name, name, **given[name]) for name in MENU}
        for paper, name in papers:
            own = given["index.html"] | {"paper": name}
            own["results"] = [one for one in source.results if one.paper == paper]
            own["headlines"] = [row for row in own["headlines"] if row.artifact.startswith(f"{paper}/")]
            files[f"papers/{paper}.html"] = self.page(f"papers/{paper}.html", "index.html", **own)
        for name, given_model in models.items():
            files[f"models/{name}.html"] = self.page(f"models/{name}.html", "model.html", model=given_model)
        for cell, kept in source.records.items():
            files[f"records/{cell}.html"] = self.record(cell)
            files |= {f"files/cells/{cell}/{name}": content for name, content in kept.attachments.items()}
        return files

    def index(self) -> dict[str, Any]:
        source, documents = self.source, [result.document for result in self.source.results]
        rows = headlines(documents, lambda cell: kept.record if (kept := source.records.get(cell)) else None)
        missed = misses(claim for table in largest(documents) for claim in table["claims"])
        found = [row for row in rows if row.claim]
        return {"headlines": found, "misses": missed, "results": source.results, "paper": ""}

    def claims(self) -> dict[str, Any]:
        found = [(result, claim) for result in self.source.results for claim in result.document["claims"]]
        rows = zip(found, adjusted([claim for _, claim in found]), strict=True)
        verdicts = [(word, word) for word, _ in counted(claim["verdict"] for _, claim in found)]
        papers = papers_of(self.source.results)
        return {"claims": [(*one, p) for one, p in rows], "papers": papers, "verdicts": verdicts}

    def bench(self, name: str) -> Markup:
        try:
            return Markup(self.page("", "bench.html", name=name, bench=self.source.benches[name]).decode())
        except DAMAGES as error:
            again = f"measure it again: scripts/bench.py {name.partition('.')[0]} --json FILE"
            raise UsageError(f"results/bench/{name}.json: damaged: {error}; {again}") from error

    def artifact(self, result: Result, drawn: Mapping[str, Any]) -> bytes:
        scale = result.artifact.scales.get(result.scale.partition("+")[0]) if result.artifact else None
        others = [one for one in self.source.results if one.id == result.id and one.scale != result.scale]
        given = {"drawn": drawn, "about": scale.about if scale else "", "others": others, **grid(result, self.source)}
        return self.page(result.page, "artifact.html", result=result, **given)

    def record(self, cell: str) -> bytes:
        kept, uses = self.source.records[cell], self.source.uses.get(cell, ())
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, value in configs.leaves(kept.record.config):
            section, _, key = name.partition(".")
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            sections.setdefault(section if key else "", []).append((key or name, text))
        commits = [str(code["commit"] or "unknown") for code in code_of(kept.record)]
        curves = {name: shown for name, of in sorted(kept.record.curves.items()) if (shown := curve(of))}
        given = {"kept": kept, "record": kept.record, "uses": uses, "papers": papers_of(use.result for use in uses)}
        given |= {"curves": curves, "sections": sections, "later": sorted({*commits[1:]} - {commits[0]})}
        return self.page(f"records/{cell}.html", "record.html", cell=cell, **given)


class Drawing(NamedTuple):
    """A figure as a page shows it: rows of figure.csv; place, label and values of the marks that ``Figure`` noted."""

    svg: str
    width: float
    rows: list[dict[str, str]]
    marks: list[Any]


def shipped() -> dict[str, dict[str, Any]]:
    """Return the facts of each model that the package brings, with the text and the figure of its example."""
    found = {}
    for path in sorted(card.LIST.parent.glob("*/config.json")):
        name, size = path.parent.name, path.with_name("model.safetensors").stat().st_size
        files = {one.name: one.read_bytes() for one in sorted((EXAMPLES / name).glob("*.*"))}
        drawn = drawing(files, "figure", f"Example of {name}") if "figure.svg" in files else None
        example = {"text": files.get("example.txt", b"").decode(), "drawn": drawn}
        found[name] = card.facts(name, json.loads(path.read_bytes()), size) | example
    return found


def drawing(files: Mapping[str, bytes], stem: str, label: str) -> Drawing | str:
    """Return a figure without scripts and outside addresses, in colours that pages change; or why there is none."""
    try:
        root = ElementTree.fromstring(files[f"{stem}.svg"])
    except ElementTree.ParseError as error:
        return str(error)
    if _plain(root.tag) != "svg":
        return "no svg element"
    try:
        marks = list(json.loads(next(root.iter("{http://purl.org/dc/elements/1.1/}description")).text or "")["marks"])
    except (StopIteration, ValueError, LookupError, TypeError):
        marks = []
    _clean(root)
    text = files.get(f"{stem}.csv", b"").decode(errors="replace")
    rows = [{name: str(value) for name, value in row.items() if name} for row in csv.DictReader(io.StringIO(text))]
    width = float(re.sub(r"[^\d.]", "", root.attrib.pop("width", "")) or 500.0)
    root.attrib.pop("height", None)
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
        outside = name == "href" and not value.startswith(("#", "data:image/png;base64,"))
        if not (name.startswith("on") or outside or "url(" in value.replace("url(#", "")):
            node.set(name, re.sub("#[0-9a-fA-F]{6}", lambda one: VARIABLES.get(one[0].lower(), one[0]), value))
    for child in list(node):
        if _plain(child.tag) in KEPT:
            _clean(child)
        else:
            node.remove(child)
    if node.tag not in ("text", "tspan"):
        node.text = None
        for child in node:
            child.tail = None


def grid(result: Result, source: Source) -> dict[str, Any]:
    """Return the lines of a table: the numbers of each quantity at each place, and their records."""
    artifact, rows = result.artifact, result.document["rows"]
    specs, metrics = (artifact.quantities, artifact.metrics) if artifact else ({}, {})
    there = dict.fromkeys(key for row in rows for key in row if key not in PLACED)
    axes = [key for key in there if not key.endswith(("_mean", "_std", "_seeds"))]
    judged = {row["verdict"] for row in rows} - {"", NOT_RUN, REDUCED} != set()
    quantities, lines = list[dict[str, Any]](), dict[tuple[str, ...], dict[str, Any]]()
    for name in dict.fromkeys(row["quantity"] for row in rows):
        spec, own = specs.get(name), [row for row in rows if row["quantity"] == name]
        has = {one: any(row.get(f"{one}_mean") is not None for row in own) for one in ("paper", "reference", "own")}
        kinds = ["paper"] * has["paper"] + ["reference"] * has["reference"] + ["ours"] * has["own"]
        kinds += ["as reference"] * has["reference"] + ["verdict"] * (judged and has["paper"] and has["own"])
        setting = isinstance(spec, Column) and not has["paper"]
        quantities.append({"name": name, "spec": spec, "kinds": kinds, "setting": setting})
    quantities.sort(key=lambda one: (isinstance(one["spec"], Column), one["setting"]))
    for row in rows:
        at, repeat = (*(str(row.get(axis, "")) for axis in axes), row.get("baseline", "")), 0
        while row["quantity"] in lines.get(key := (*at, str(repeat)), {}):
            repeat += 1
        lines.setdefault(key, {})[row["quantity"]] = row
    cells: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for cell, place in result.document["cells"].items():
        at = ("", place["baseline"]) if "baseline" in place else (*(str(place.get(axis, "")) for axis in axes), "")
        cells.setdefault(at, []).append((place["seed"], cell))
    found = []
    for (*values, baseline, _), numbers in lines.items():
        columns = [(one, kind) for one in quantities for kind in one["kinds"]]
        entries = [(one, kind, entry(one["spec"], kind, numbers.get(one["name"]))) for one, kind in columns]
        own = sorted(cells.get(("", baseline) if baseline else (*values, ""), []))
        kept = {cell: with_derived(source.records[cell].record, metrics) for _, cell in own if cell in source.records}
        behind = [(seed, cell, kept.get(cell)) for seed, cell in own]
        named = labels(result, dict(zip(axes, values, strict=True)), baseline)
        found.append({"labels": named, "baseline": baseline, "entries": entries, "records": behind})
    titles = [artifact.axes[axis].title if artifact and axis in artifact.axes else axis for axis in axes]
    return {"axes": titles, "quantities": quantities, "lines": found}


def labels(result: Result, place: Mapping[str, str], baseline: str) -> list[str]:
    """Return the labels of a place; a baseline's name stands in the first one that it leaves open."""
    known = {axis: spec.values for axis, spec in result.artifact.axes.items()} if result.artifact else {}
    found = [known[axis][at].label if at in known.get(axis, {}) else at for axis, at in place.items()]
    if baseline and found:
        specs = result.artifact.baselines if result.artifact else {}
        name = specs[baseline].label if baseline in specs else baseline
        found[found.index("") if "" in found else 0] = f"Baseline: {name}"
    return found


def entry(spec: Metric | Column | None, kind: str, row: Mapping[str, Any] | None) -> str:
    """Return a number of a row as the printed table has it."""
    if row is None or kind == "as reference":
        return str((row or {}).get("as_reference") or "")
    if kind == "verdict":
        change = row["verdict"] == OFF and isinstance(spec, Metric) and row["paper_mean"]
        return row["verdict"] + (f" {100 * (row['own_mean'] / row['paper_mean'] - 1):+.2g} %" if change else "")
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


def papers_of(found: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((result.paper, paper_name(result.paper)) for result in found))


def counted(found: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(found).items(), key=lambda one: (ORDER.index(one[0]) if one[0] in ORDER else len(ORDER), one))


def number(value: float) -> str:
    """Write a number of any size in at most six digits: 1,234,567 or 0.0123457."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def place(use: Use) -> str:
    """Write a place with the labels of the table: "GPT, width 64"."""
    if "baseline" in use.place:
        return labels(use.result, {"": ""}, str(use.place["baseline"]))[0]
    axes = use.result.artifact.axes if use.result.artifact else {}
    at = {name: str(value) for name, value in use.place.items() if name != "seed"}
    at = {name: value for name, value in at.items() if name not in axes or len(axes[name].values) > 1}
    titles = [f"{axes[name].title} " if name in axes else "" for name in at]
    named = zip(titles, labels(use.result, at, ""), strict=True)
    return ", ".join(title * bool(re.fullmatch(r"[\d.,e-]+", label)) + label for title, label in named)


def curve(points: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finite values of a curve and their marks in a drawing of 320 by 130; nothing for none."""
    pairs = zip(points.get("step", ()), points.get("value", ()), strict=False)
    if not (kept := [(step, value) for step, value in pairs if math.isfinite(step) and math.isfinite(value)]):
        return {}
    steps, values = zip(*kept, strict=True)
    across, up = (max(steps) - min(steps)) or 1, (max(values) - min(values)) or 1
    places = [(8 + 304 * (x - min(steps)) / across, 112 - 102 * (y - min(values)) / up) for x, y in kept]
    named = [
        (f"{x:.1f}", f"{y:.1f}", "", f"step {at:g}", f"{z:.6g}") for (x, y), (at, z) in zip(places, kept, strict=True)
    ]
    return {"marks": named, "line": " ".join(f"{x},{y}" for x, y, *_ in named), "steps": steps, "values": values}
