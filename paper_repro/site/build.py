"""Builds the site of all results in memory, then writes it: the same results give the same bytes."""

import functools
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from paper_repro.artifacts import paper_claims
from paper_repro.artifacts.artifact import Metric
from paper_repro.artifacts.claim_rows import WHOSE
from paper_repro.artifacts.derived import with_derived
from paper_repro.artifacts.guards import NOT_JUDGED
from paper_repro.artifacts.judgements import FAILS, HOLDS, OTHER_SCALE, SMALL, UNDECIDED, reason
from paper_repro.artifacts.made_of import count_text
from paper_repro.artifacts.open_claims import REDUCED as SMALL_SCALE
from paper_repro.artifacts.open_claims import openness
from paper_repro.artifacts.verdicts import FITTED, NOT_RUN, OFF, REDUCED, REPRODUCED
from paper_repro.base import config as configs
from paper_repro.base import origins
from paper_repro.base.durations import duration
from paper_repro.base.errors import UsageError
from paper_repro.cells.measurements import code_of
from paper_repro.cells.planned import Key
from paper_repro.cells.records import Record
from paper_repro.site import figures, folder
from paper_repro.site.grids import Quantity, grid
from paper_repro.site.source import Result, Source, Use, bench_commit, damaged, read

HERE = Path(__file__).parent
PAPERS = {"nrgpt": "NRGPT", "ngpt": "nGPT", "cet": "CET", "ebt": "EBT", "cem": "CEM"}
MENU = {
    "index.html": "Artifacts",
    "claims.html": "Claims",
    "figures.html": "Figures",
    "papers.html": "Papers and code",
    "benches.html": "Speeds",
    "records.html": "Records",
}
CLAIM_WORDS = (HOLDS, FAILS, SMALL, UNDECIDED, NOT_JUDGED, OTHER_SCALE)
NUMBER_WORDS = (REPRODUCED, FITTED, OFF, REDUCED)
TONES = {
    HOLDS: "good",
    REPRODUCED: "good",
    FITTED: "fitted",
    FAILS: "bad",
    OFF: "bad",
    UNDECIDED: "open",
    SMALL: "little",
}
"""The colour of a verdict, as a class of the style sheet; of others it is ``mute``."""
DAMAGES = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What is raised where a file lacks something that its page shows."""
STEMS = ("figure", "figure_appendix")
MULTIPLE = object()
"""Stands for a value that is written as a multiple of another."""
OF_APPENDIX = re.compile(r"(fig|table)[A-Z]")
AUTHORS = re.compile(r"\bauthors['’]")
"""How a note names the code that the authors of a paper published."""
DEVIATIONS = re.compile(r"^#\s*Deviations:\s+(.*(?:\n#(?!\s*[A-Z][a-z]+:\s).*)*)", re.MULTILINE)


class Built(NamedTuple):
    """What a build has written."""

    folder: Path
    pages: int
    bytes: int
    damaged: tuple[str, ...]
    """Cells whose record could not be read."""


def build(results: Path, to: Path) -> Built:
    """Write the site of a folder of results, which is only read.

    Raises:
        UsageError: a table or bench is damaged, or ``to`` is not ours, is in use or cannot be written.
    """
    folder.listed(to)
    source = read(results)
    files = Site(source).files()
    with folder.opened(to):
        folder.write(to, files)
    pages = sum(name.endswith(".html") for name in files)
    return Built(to, pages, sum(map(len, files.values())), tuple(sorted(source.damaged)))


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
        for function in (because, claim_word, count_text, counted, duration, number, own_text, paper_name, place):
            self.environment.filters[function.__name__] = function
        self.environment.filters |= {"address": functools.partial(quote, safe="/._-+"), "median": statistics.median}
        self.environment.filters["tone"] = lambda word: TONES.get(word, "mute")
        self.environment.globals |= {"menu": MENU, "source": source, "whose": WHOSE, "bench_commit": bench_commit}
        self.origins = functools.lru_cache(maxsize=None)(self._origins)

    def page(self, path: str, template: str, **given: Any) -> bytes:
        up = "../" * path.count("/")
        return self.environment.get_template(template).render(here=path, up=up, **given).encode()

    def files(self) -> dict[str, bytes]:
        """Return every file of the site by its path."""
        source = self.source
        files = {f"static/{path.name}": path.read_bytes() for path in sorted((HERE / "static").iterdir())}
        for result in source.results:
            try:
                files[result.page] = self.artifact(result)
            except DAMAGES as error:
                raise damaged(result.path, error) from error
            files |= {f"files/{result.id}/{result.scale}/{name}": content for name, content in result.files.items()}
        used = [use.result for uses in source.uses.values() for use in uses]
        quoted = quoted_papers(source)
        given: dict[str, Any] = {
            "index.html": self.index(),
            "claims.html": self.claims(),
            "figures.html": {"figures": figures_in_order(source), "papers": papers_of(source.results)},
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
        cards = [(one, counted(number_words(one)), claim_words(one)) for one in source.results]
        words = counted(word for one in source.results for word in (*claim_words(one), *number_words(one)))
        missing = sorted(source.artifacts.keys() - {result.id for result in source.results})
        others = [name.partition("/")[0] for name in (*missing, *source.faults)]
        return {
            "papers": list(dict.fromkeys([*papers, *((paper, paper_name(paper)) for paper in others)])),
            "known": sum(paper in PAPERS for paper, _ in papers),
            "own": sum(paper not in PAPERS for paper, _ in papers),
            "scales": [word for word in ("smoke", "cpu", "gpu") if any(one.scale == word for one in source.results)],
            "verdicts": [(word, word) for word, _ in words],
            "cards": cards,
            "missing": [source.artifacts[name] for name in missing],
        }

    def claims(self) -> dict[str, Any]:
        source = self.source
        claims = [(result, claim) for result in source.results for claim in result.document["claims"]]
        tested = {claim.catalogue for artifact in source.artifacts.values() for claim in artifact.claims}
        return {
            "claims": claims,
            "papers": papers_of(result for result, _ in claims),
            "verdicts": [(word, word) for word, _ in counted(claim["verdict"] for _, claim in claims)],
            "owners": [(one, WHOSE.get(one, one)) for one in sorted({claim["whose"] for _, claim in claims})],
            "pages": {result.id: result.page for result in source.results if result.scale == SMALL_SCALE},
            "undecided": openness(result.document for result in source.results).undecided,
            "untested": [claim for claim in paper_claims.known().values() if claim.id not in tested],
        }

    def bench(self, name: str) -> Markup:
        try:
            return Markup(self.page("", "bench.html", name=name, bench=self.source.benches[name]).decode())
        except DAMAGES as error:
            raise UsageError(
                f"results/bench/{name}.json: damaged: {str(error)!r} is missing or wrong; measure it again: "
                f"scripts/bench.py {name.partition('.')[0]} --json FILE"
            ) from error

    def artifact(self, result: Result) -> bytes:
        artifact, files, drawn = result.artifact, result.files, dict[str, Any]()
        for stem in (one for one in STEMS if f"{one}.svg" in files):
            label = f"Figure of {result.id}: {result.document['title']}"
            try:
                drawn[stem] = figures.drawing(files[f"{stem}.svg"], files.get(f"{stem}.csv", b""), label)
            except ValueError as error:
                drawn[stem] = str(error)
        scale = artifact.scales.get(result.scale.partition("+")[0]) if artifact else None
        shown = grid(result, self.source.records)
        records = [
            {"line": number, "first": not place, "labels": line.labels, "seed": seed, "cell": cell}
            | {"record": self._derived(result, cell)}
            for number, line in enumerate(shown.lines)
            for place, (seed, cell) in enumerate(
                [(seed, cell) for seed, ids in sorted(line.cells.items()) for cell in ids] or [("", "")]
            )
        ]
        given = {"grid": shown, "drawn": drawn, "about": scale.about if scale else "", "records": records}
        given["others"] = [one for one in self.source.results if one.id == result.id and one.scale != result.scale]
        return self.page(result.page, "artifact.html", result=result, **given)

    def _derived(self, result: Result, cell: str) -> Record | None:
        kept = self.source.records.get(cell)
        return with_derived(kept.record, result.artifact.metrics) if kept and result.artifact else kept and kept.record

    def record(self, cell: str) -> bytes:
        kept, uses = self.source.records[cell], self.source.uses.get(cell, ())
        config, record = dict(origins.leaves(kept.record.config)), kept.record
        found = next((known for use in uses if (known := self.origins_of(config, use))), {})
        sections: dict[str, list[tuple[str, str, str]]] = {}
        for name, value in config.items():
            section, _, key = name.partition(".")
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            sections.setdefault(section if key else "", []).append((key or name, text, found.get(name, "")))
        commits = [str(code["commit"] or "unknown") for code in code_of(record)]
        given = {"kept": kept, "record": record, "uses": uses, "papers": papers_of(use.result for use in uses)}
        given["curves"] = {name: shown for name, of in sorted(record.curves.items()) if (shown := curve(of))}
        given |= {"sections": sections, "known": bool(found)}
        given["later"] = sorted({*commits[1:]} - {commits[0]})
        return self.page(f"records/{cell}.html", "record.html", cell=cell, **given)

    def origins_of(self, config: Mapping[str, Any], use: Use) -> dict[str, str]:
        """Return the file and line, axis or scale that sets each value of a config today; none of a floor."""
        artifact = use.result.artifact
        if artifact is None or "floor" in use.place:
            return {}
        key = tuple((axis, str(use.place.get(axis))) for axis in artifact.axes)
        if any(value not in artifact.axes[axis].values for axis, value in key):
            return {}
        written, sources = self.origins(artifact.id, use.result.scale.partition("+")[0], key)
        found = {"seed": "the seed"} if "seed" in config and sources else {}
        for name, value in config.items():
            today, place = written.get(name), sources.get(name, "")
            if isinstance(today, str) and "${" in today:
                found.setdefault(name, f"{today}, {place}")
            elif place:
                found.setdefault(name, place if today in (value, MULTIPLE) else f"today {today!r}: {place}")
        return found

    def _origins(self, name: str, scale: str, key: Key) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values of a point as today's files write them, and the source of each."""
        artifact = self.source.artifacts[name]
        try:
            overrides = configs.parse_all(artifact.overrides(key, artifact.scale(scale)[1]))
            files = origins.composed(artifact.experiment, configs.chosen_groups(overrides))
            found = origins.origins(artifact.experiment, overrides, 0)
        except UsageError:
            return {}, {}
        written = {name: one.value for name, one in files.items()}
        for item in (one for one in overrides if not configs.chooses(one)):
            written |= {item.key: MULTIPLE} if item.times else dict(origins.leaves(item.value, item.key))
        return written, {name: source.replace(f"{origins.ROOT}/", "") for name, source in found.items()}


def paper_name(paper: str) -> str:
    return PAPERS.get(paper, paper)


def papers_of(results: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((result.paper, paper_name(result.paper)) for result in results))


def because(judged: Mapping[str, Any]) -> str:
    """Return what a verdict rests on, and what would decide it."""
    seeds, seconds = judged.get("more_seeds"), judged.get("more_seconds")
    return reason(judged.get("because", ""), judged.get("remark", ""), seeds, seconds)


def claim_words(result: Result) -> list[str]:
    return [claim["verdict"] for claim in result.document["claims"]]


def number_words(result: Result) -> list[str]:
    return [row["verdict"] for row in result.document["rows"] if row.get("verdict") not in ("", None, NOT_RUN)]


def counted(words: Iterable[str]) -> list[tuple[str, int]]:
    """Count verdicts, in the order in which pages name them."""
    counts, known = Counter(words), (*CLAIM_WORDS, *NUMBER_WORDS)
    return sorted(counts.items(), key=lambda one: (known.index(one[0]) if one[0] in known else len(known), one[0]))


def claim_word(judged: Mapping[str, Any]) -> str:
    """Return the verdict of a claim, or of a part of one, as tables print it."""
    if judged["verdict"] == SMALL and judged.get("size"):
        return f"{SMALL} of {judged['size']}"
    exact = judged["verdict"] in (HOLDS, FAILS) and judged.get("exact")
    return f"{judged['verdict']} (exact)" if exact else str(judged["verdict"])


def number(value: float) -> str:
    """Write a number of any size in at most six digits: 1,234,567 or 0.0123457."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def own_text(quantity: Quantity, record: Record) -> str:
    """Write a record's own number with one digit more than the mean over seeds."""
    spec, value = quantity.spec, record.metrics.get(quantity.name)
    if isinstance(spec, Metric) and value is not None:
        return format(value / spec.factor, f".{spec.digits + 1}{spec.format}")
    if value is None and spec is not None and not isinstance(spec, Metric):
        value = {"parameters": record.parameters, "multiply_adds": record.multiply_adds}.get(spec.source)
    return "" if value is None else number(value)


def place(use: Use) -> str:
    """Write a place with the labels that the table has: "GPT, width 64"."""
    artifact, found = use.result.artifact, []
    if "floor" in use.place:
        name = str(use.place["floor"])
        return f"Floor: {artifact.floors[name].label if artifact and name in artifact.floors else name}"
    for axis, value in use.place.items():
        known = artifact.axes.get(axis) if artifact else None
        if axis != "seed" and not (known and len(known.values) == 1):
            label = known.values[value].label if known and value in known.values else str(value)
            bare = label.replace(".", "").replace(",", "").isdigit()
            found.append(f"{known.title} {label}" if known and bare else label)
    return ", ".join(found)


def figures_in_order(source: Source) -> list[tuple[Result, str, bool]]:
    """Return all figures, of each paper those of its own text first, and whether they show pictures."""
    there = [(one, stem) for one in source.results for stem in STEMS if f"{stem}.svg" in one.files]
    papers = [paper for paper, _ in papers_of(source.results)]

    def order(figure: tuple[Result, str]) -> tuple[int, bool]:
        result, stem = figure
        return papers.index(result.paper), stem != "figure" or bool(OF_APPENDIX.match(result.id.partition("/")[2]))

    return [(one, stem, b"<image" in one.files[f"{stem}.svg"]) for one, stem in sorted(there, key=order)]


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
    steps, values = [step for step, _ in kept], [value for _, value in kept]
    if not kept:
        return {}
    left, low, wide, high = min(steps), min(values), max(steps) - min(steps), max(values) - min(values)
    dots = [
        (
            f"{8 + 304 * (step - left) / wide if wide else 160:.1f}",
            f"{112 - 102 * (value - low) / high if high else 61:.1f}",
            f"step {number(step)}: {value:.6g}",
        )
        for step, value in kept
    ]
    return {"dots": dots, "steps": steps, "values": values}
