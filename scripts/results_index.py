"""Writes pages from the committed results: README.md, one for each paper, claims.md, bench/README.md, and the heads of
experiments.

results_index.py            write all; the head of an experiment's config says what a run should come to
results_index.py --check    write nothing; exit code 1 if one of them is not current
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import json
import os
import re
import statistics
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from paper_repro.base.configs import CONF
from paper_repro.base.errors import RESULTS, ROOT, UsageError, duration, parse, run_main
from paper_repro.cells import records
from paper_repro.site.files import Headline, adjusted, bench_commit, headlines, misses, read_bench
from paper_repro.tables import spec
from paper_repro.tables.publish import counted, judged, tabulated, verdicts
from paper_repro.tables.spec import EXACT
from paper_repro.tables.table import FITTED, in_markdown

WRITTEN_BY = "<!-- Written by scripts/results_index.py; edit that script, not this file. -->"
COMMAND_HEADERS = ["command", "processor s", "s", "goal", "where", "code"]
FIELD, NEXT, COLUMNS = "# Expected:   ", "#             ", 124
"""The field of an experiment's head, the beginning of its further lines, and their width."""


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--check", "--help", "-h"), ())
    if words.flags & {"--help", "-h"}:
        print(__doc__)
        return 0
    os.environ.pop("PAPER_REPRO_PAPERS", None)  # the reference is that of the repository's own artifacts
    tables = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/*/*/table.json"))]
    if unknown := sorted({table["artifact"] for table in tables} - spec.find().keys()):
        raise UsageError(f"{RESULTS / unknown[0]} has a table, {spec.PAPERS} no file: add that, or delete it")
    rows = headlines(tables, lambda cell: records.find(RESULTS, cell))
    texts = {
        "README.md": _readme(tables, rows),
        "claims.md": _claims(tables),
        "bench/README.md": _benches(RESULTS / "bench"),
    }
    papers = {name.partition("/")[0] for name in spec.find()}
    texts |= {f"{paper}/README.md": _paper(paper, rows) for paper in papers}
    pages = {RESULTS / name: f"{WRITTEN_BY}\n{text}" for name, text in texts.items()} | dict(_experiments(RESULTS))
    if "--check" in words.flags:
        stale = [path for path, text in pages.items() if not path.is_file() or path.read_text() != text]
        for path in stale:
            print(f"{path} is not what the tables say: run python scripts/results_index.py", file=sys.stderr)
        return int(bool(stale))
    for path, text in pages.items():
        path.write_text(text)
    return 0


def _readme(tables: Sequence[dict[str, Any]], claims: Sequence[Headline]) -> str:
    """Write the page that begins with the headline claims and lists every artifact."""
    rows, told = _headlines(claims)
    found = json.loads((RESULTS / "cem/table3/cpu/table.json").read_text())["rows"]
    measured = [one["verdict"] for one in found if one["quantity"] in ("train_rmse", "test_rmse") and one["verdict"]]
    return _filled(
        "README.md",
        headlines=rows,
        misses=misses(claim for table in counted(tables) for claim in table["claims"]),
        replications=told,
        table=_listing(RESULTS),
        totals=_totals(tables),
        fitted=measured.count(FITTED),
        judged=len(measured),
    )


def _headlines(claims: Sequence[Headline]) -> tuple[str, str]:
    """Return the table of the headline claims, and the list of their public replications."""
    rows, told = [], list[str]()
    for row in claims:
        sources = ", ".join(f"[{one['source']}]({one['address']})" for one in row.replications) or "none read"
        rows.append([f"**{row.name}**", row.paper, row.sentence, *_here(row, RESULTS), row.regime, sources])
        told += [f"* **{row.name}.** {one['found']} ([{one['source']}]({one['address']}))" for one in row.replications]
    headers = ["", "claim of the paper", "in a sentence", "here", "word", "models here", "public replications"]
    return _table(rows, headers), "Public replications, as their sources say:\n\n" + "\n".join(told)


def _here(row: Headline, below: Path) -> tuple[str, str]:
    """Return the estimate of a headline claim with a link from a folder to its table, and its word."""
    if row.claim is None:
        return f"{row.artifact}: not run", ""
    place = (RESULTS / row.artifact / row.scale / "table.md").relative_to(below).as_posix()
    return (
        f"{_estimate(row.claim)}; claim: {row.claim['claimed']} ([{row.artifact}]({place}))",
        f"**{row.claim['word']}**",
    )


def _paper(paper: str, claims: Sequence[Headline]) -> str:
    """Write the page of a paper: of each headline claim what the paper says, what was found here and elsewhere."""
    items = []
    for row in (row for row in claims if row.artifact.startswith(f"{paper}/")):
        estimate, word = _here(row, RESULTS / paper)
        found = " ".join(f"{one['found']} ([{one['source']}]({one['address']}))" for one in row.replications)
        said = f"*The paper:* {row.paper}. *Ours* ({row.regime}), {word}: {row.sentence} {estimate}."
        items.append(f"* **{row.name}.** {said} *Others:* {found or 'none read.'}")
    title = next(spec.load(name).source.paper for name in spec.find() if name.startswith(f"{paper}/"))
    return _filled("paper.md", title=title, headlines="\n".join(items), table=_listing(RESULTS / paper))


def _filled(template: str, **parts: Any) -> str:
    return (ROOT / "paper_repro" / "site" / "templates" / template).read_text(encoding="utf-8").format(**parts)


def _listing(below: Path) -> str:
    """List the published artifacts below a folder as a Markdown table, with links from that folder."""
    rows = []
    found = spec.scan()
    for name in (one for one in found if (RESULTS / one).is_relative_to(below)):
        artifact = spec.load(name, found)
        folder, *made = judged(artifact, RESULTS)
        title = name if folder is None else f"[{name}]({folder.relative_to(below).as_posix()}/table.md)"
        rows.append([title, artifact.title, "-" if folder is None else folder.name, *made])
    headers = ["artifact", "title (the paper's)", "scale", "made from", "the paper's claims", "questions of ours"]
    return tabulated(rows, headers, "github")


def _estimate(claim: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, ((claim["estimate"] or {}).get("text", ""), claim["because"])))


def _totals(tables: Sequence[dict[str, Any]]) -> str:
    """Count the words, and say which claims of the papers no published table tests."""
    said, titles = list[str](), {"paper": "Claims of the papers", "ours": "Questions of ours"}
    for whose, title in titles.items():
        claims = (one for table in counted(tables) for one in table["claims"] if one["whose"] == whose)
        said.append(f"{title}: {verdicts(claims)}.")
    judged = {(table["artifact"], claim["id"]) for table in tables for claim in table["claims"]}
    every = [(name, one.id) for name in spec.find() for one in spec.load(name).claims if not one.ours]
    open_ones = [f"{name} {claim}" for name, claim in every if (name, claim) not in judged]
    return " ".join([*said, *([f"Not judged in a published table: {', '.join(open_ones)}."] if open_ones else [])])


def _claims(tables: Sequence[dict[str, Any]]) -> str:
    found = [(table, claim) for table in counted(tables) for claim in table["claims"]]
    corrected, rows = adjusted([claim for _, claim in found]), []
    for (table, claim), p in zip(found, corrected, strict=True):
        link = f"[{table['artifact']}]({table['artifact']}/{table['scale']}/table.md) {claim['id']}"
        whose = "ours" if claim["whose"] == "ours" else "the paper"
        said = [in_markdown(text) for text in (claim["says"], _estimate(claim), claim["claimed"])]
        rows.append([link, whose, *said, f"**{claim['word']}**", "" if p is None else f"{p:.2g}"])
    listing = _table(rows, ["claim", "whose", "says", "estimate", "claimed", "word", "adjusted p"])
    count = sum(p is not None for p in corrected)
    missed = misses(claim for _, claim in found)
    return _filled("claims.md", totals=_totals(tables), misses=missed, count=count, table=listing)


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """Write a Markdown table whose source has no padding, because long cells would stretch every line."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _benches(folder: Path) -> str:
    found: dict[str, list[list[str]]] = {"comparisons": [], "commands": []}
    missed, known = list[str](), spec.find()
    for path in sorted(folder.glob("*.json")):
        bench = read_bench(path)
        end = f"{bench['device']}, {bench['threads']} thread", bench_commit(bench)
        found["comparisons"] += [[bench["bench"], *_comparison(one), *end] for one in bench.get("comparisons", [])]
        commands = [one for one in bench.get("commands", []) if _is_there(one["command"], known)]
        found["commands"] += [_command(one, *end) for one in commands]
        missed += [f"`{one['command']}`" for one in commands if not one["met"]]
    comparison = ["bench", "case", "ours", "against", "ratio", "goal", "relative error", "where", "code"]
    headers = {"comparisons": comparison, "commands": COMMAND_HEADERS}
    tables = {name: _table(rows, headers[name]) if rows else "Not measured yet." for name, rows in found.items()}
    return _filled(
        "benches.md",
        table=tables.pop("comparisons"),
        **tables,
        slow=f"Goals missed: {', '.join(missed)}." if missed else "",
    )


def _comparison(one: Mapping[str, Any]) -> list[str]:
    goal = "" if one["goal"] is None else f"{one['goal']:.3g}x"
    ours = f"{statistics.median(one['ours']):.4g} {one['unit']}"
    return [one["case"], ours, one["other"], f"{one['ratio']:.2f}x", goal, f"{one['relative_error']:.1e}"]


def _is_there(command: str, known: Container[str]) -> bool:
    """Return whether a command names no artifact that has gone since it was measured."""
    named = re.search(r"reproduce\.py (\w+/\w+)", command)
    return named is None or named[1] in known


def _command(one: Mapping[str, Any], where: str, code: str) -> list[str]:
    named = f"`{one['command']}`" if len(one["processor"]) == 1 else f"`{one['command']}`, {one['case']}"
    times = [f"{statistics.median(one[kind]):.2f}" for kind in ("processor", "wall")]
    return [named, *times, f"{one['goal']:g} s", where, code]


def _experiments(results: Path) -> Iterator[tuple[Path, str]]:
    """Yield each experiment's file with a head that says what one published artifact that it feeds came to."""
    for path in sorted((CONF / "experiment").rglob("*.yaml")):
        bare = re.sub(rf"^{FIELD}.*\n(?:{NEXT}.*\n)*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        feeds = re.search(r"^# Feeds: .*\n", bare, re.MULTILINE)
        name = path.relative_to(CONF / "experiment").with_suffix("").as_posix()
        said = _expected(re.findall(r"\b\w+/\w+\b", feeds[0]), results, name) if feeds else ""
        if feeds is None or not said:
            yield path, bare
            continue
        trains = re.search(r"^# Command: .*scripts/train\.py", bare, re.MULTILINE)
        said = f"not run at these settings; reproduce.py {said}" if trains else said
        lines = textwrap.wrap(said, COLUMNS - len(FIELD), break_long_words=False, break_on_hyphens=False)
        yield path, bare[: feeds.end()] + FIELD + f"\n{NEXT}".join(lines) + "\n" + bare[feeds.end() :]


def _expected(names: Iterable[str], results: Path, experiment: str) -> str:
    """Return a measured value of the first of these artifacts that has a table, and its cost."""
    known = [spec.load(name) for name in names if name in spec.find()]
    for artifact in sorted(known, key=lambda artifact: artifact.experiment != experiment):
        for path in sorted((results / artifact.id).glob("*/table.json")):
            table = json.loads(path.read_text(encoding="utf-8"))
            cost, value = "nothing is trained", f"{artifact.id} at scale {table['scale']}"
            if table["scale"] != EXACT:
                seconds = [found.seconds for cell in table["cells"] if (found := records.find(results, cell))]
                cost = f"its {len(seconds)} cells took {duration(sum(seconds))} of one processor core"
            measured = {name: metric for name, metric in artifact.metrics.items() if metric.measured}
            rows = [row for row in table["rows"] if row["quantity"] in measured and not row.get("baseline")]
            if rows := [row for row in rows if row["own_mean"] is not None]:
                row = next((row for row in rows if row["own_std"]), rows[-1])
                metric = measured[row["quantity"]]
                labels = [axis.values[row[name]].label for name, axis in artifact.axes.items()]
                value += f", {', '.join(labels)}: {metric.title} {metric.text(row['own_mean'])}"
                if row["own_std"]:
                    value += f" ± {metric.text(row['own_std'])} over {row['own_seeds']} seeds"
            return f"{value}; {cost}"
    return ""


if __name__ == "__main__":
    sys.exit(run_main(main))
