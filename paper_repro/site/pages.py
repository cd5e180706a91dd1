"""The pages of a site: jinja2 templates filled with tables, figures, records and benches."""

import csv
import functools
import html
import io
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup

from paper_repro.base import configs
from paper_repro.base.errors import RESULTS, duration
from paper_repro.cells.measurements import code_of
from paper_repro.exports import card
from paper_repro.site.files import Result, Source, Use, adjusted, bench_commit, headlines, misses, read, write
from paper_repro.tables import claims as words
from paper_repro.tables import plots
from paper_repro.tables.publish import counted, tally
from paper_repro.tables.view import count_text

HERE = Path(__file__).parent
EXAMPLES = RESULTS / "models"  # by model, what the command `try` of weights.yaml prints and draws
PAPERS = {"nrgpt": "NRGPT", "ngpt": "nGPT", "cet": "CET", "ebt": "EBT", "cem": "CEM"}
MENU = {
    **{"index.html": "Results", "claims.html": "Claims", "figures.html": "Figures"},
    **{"models.html": "Models", "benches.html": "Speeds", "records.html": "Records"},
}
TONES = {
    **dict.fromkeys((words.HOLDS, words.SEEN), "good"),
    **dict.fromkeys((words.FAILS, words.OPPOSITE), "bad"),
    **{words.NO_DIFFERENCE: "little", words.CANNOT_TELL: "open"},
}
DARK = {"ground": "#1f1f1c", "ink": "#e9e6df", "rule": "#8f8b82", "grid": "#6d6a62", "soft": "#b5b0a5"}
DARK |= {"blue": "#5ba9e6", "vermilion": "#ff8a3d", "green": "#35c69a", "purple": "#e07bb4", "violet": "#b18cff"}
DARK |= {"sky": "#7cc2ef", "grey": "#a3a09a"}
COLOURS = {"#000000": "ink", "#b0b0b0": "grid", "#cccccc": "grid", plots.BASELINE.lower(): "soft"}
COLOURS |= {getattr(plots, name.upper()).lower(): name for name in DARK if name != "grid"}
VARIABLES = {colour: f"var(--{name}-drawn,{colour})" for colour, name in COLOURS.items()}
"""The variables that stand for colours in the SVG of a page; in the light each has the colour that was drawn."""
STYLE = ".drawn{color:#000}@media (prefers-color-scheme:dark){.drawn{color:var(--ink-drawn);fill:var(--ink-drawn);"
STYLE += "".join(f"--{name}-drawn:{colour};" for name, colour in DARK.items()) + "}}"


def build(results: Path, to: Path) -> tuple[Source, dict[str, bytes]]:
    """Write the site of a folder of results; return what was read, and the files by name."""
    files = Site(source := read(results)).files()
    write(to, files)
    return source, files


class Site:
    """The pages of a site."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.papers = papers_of(source.results)
        self.markdown = MarkdownIt("js-default")  # HTML in a text stays text
        options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self.environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, **options)
        self.environment.filters |= {one.__name__: one for one in (count_text, duration, paper_name, place, tally)}
        self.environment.filters |= {"address": functools.partial(quote, safe="/._-+"), "median": statistics.median}
        self.environment.filters["tone"] = lambda word: TONES.get(word, "mute")
        given = {"menu": MENU, "source": source, "bench_commit": bench_commit, "papers": self.papers}
        self.environment.globals |= given

    def page(self, path: str, template: str, **given: Any) -> bytes:
        up = "../" * path.count("/")
        return self.environment.get_template(template).render(here=path, up=up, **given).encode()

    def files(self) -> dict[str, bytes]:
        source, figures = self.source, list[tuple[Result, str]]()
        files = {f"static/{path.name}": path.read_bytes() for path in sorted((HERE / "static").iterdir())}
        for result in source.results:
            place = f"{result.id}/{result.scale}"
            label = f"Figure of {result.id}: {result.document['title']}"
            stems = [stem for stem in ("figure", "figure_appendix") if f"{stem}.svg" in result.files]
            drawn = {stem: drawing(result.files, stem, label) for stem in stems}
            files[result.page] = self.artifact(result, drawn)
            figures += [(result, stem) for stem in drawn]
            files |= {f"figures/{place}/{stem}.svg": shown.svg.encode() for stem, shown in drawn.items()}
            files |= {f"files/{place}/{name}": content for name, content in result.files.items()}
        claims, models = self.claims(), shipped()
        given: dict[str, Any] = {
            "index.html": claims | self.index(),
            "claims.html": claims,
            "figures.html": {"figures": figures},
            "models.html": {"models": models},
        }
        files |= {name: self.page(name, name, **given.get(name, {})) for name in MENU}
        for paper, name in self.papers:
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
        missed = misses(claim for table in counted(documents) for claim in table["claims"])
        found = [row for row in rows if row.claim]
        return {"headlines": found, "misses": missed, "results": source.results, "paper": ""}

    def claims(self) -> dict[str, Any]:
        found = [(result, claim) for result in self.source.results for claim in result.document["claims"]]
        rows = zip(found, adjusted([claim for _, claim in found]), strict=True)
        verdicts = [(word, word) for word, _ in tally(claim["verdict"] for _, claim in found)]
        return {"claims": [(*one, p) for one, p in rows], "verdicts": verdicts}

    def artifact(self, result: Result, drawn: "Mapping[str, Drawing]") -> bytes:
        """Show table.md with its figures, and a link to the record of each cell."""
        head, line, rest = result.files["table.md"].decode().partition("\n\n|")
        texts = [self.markdown.render(part) for part in (head, line + rest)]
        scroll = '<div class="scroll" tabindex="0"><table class="plain">'
        head, rest = (Markup(one.replace("<table>", scroll).replace("</table>", "</table></div>")) for one in texts)
        others = [one for one in self.source.results if one.id == result.id and one.scale != result.scale]
        return self.page(result.page, "artifact.html", result=result, drawn=drawn, head=head, rest=rest, others=others)

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


def drawing(files: Mapping[str, bytes], stem: str, label: str) -> Drawing:
    """Return a figure in colours that pages change, without matplotlib's metadata and style."""
    whole = files[f"{stem}.svg"].decode()
    marks = re.search(r"<dc:description[^>]*>(.*?)</dc:description>", whole, re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", whole[whole.index("<svg") :], flags=re.DOTALL)
    svg = re.sub("#[0-9a-fA-F]{6}", lambda one: VARIABLES.get(one[0].lower(), one[0]), svg)
    head, _, body = svg.partition(">")
    width = re.search(r'width="([\d.]+)', head)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    named = f'class="drawn" role="img" aria-label="{html.escape(label)}"'
    rows = list(csv.DictReader(io.StringIO(files.get(f"{stem}.csv", b"").decode())))
    return Drawing(
        f"{head} {named}><style>{STYLE}</style>{body}",
        float(width[1]) if width else 500.0,
        rows,
        json.loads(html.unescape(marks[1]))["marks"] if marks else [],
    )


def paper_name(paper: str) -> str:
    return PAPERS.get(paper, paper)


def papers_of(found: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((result.paper, paper_name(result.paper)) for result in found))


def place(use: Use) -> str:
    """Write a place in the words of the YAML: "model gpt, width 64"."""
    return ", ".join(f"{axis} {value}" for axis, value in use.place.items() if axis != "seed")


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
