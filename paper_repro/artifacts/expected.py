"""What a run of an experiment should come to: a number of the committed reference, for the head of its config."""

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper_repro.artifacts import catalogue
from paper_repro.artifacts.artifact import Artifact
from paper_repro.artifacts.axes import EXACT
from paper_repro.base.config import CONF
from paper_repro.cells.progress import duration
from paper_repro.cells.records import record_path

FIELD = "# Expected:   "
NEXT = "#             "
COLUMNS = 124
_LINES = re.compile(rf"^{FIELD}.*\n(?:{NEXT}.*\n)*", re.MULTILINE)
_FEEDS = re.compile(r"^# Feeds: .*\n", re.MULTILINE)


def with_expectation(text: str, results: Path) -> str:
    """Return the text of an experiment's file whose head says what its first published artifact came to.

    The lines follow "Feeds", which names the artifacts.
    """
    bare = _LINES.sub("", text)
    feeds = _FEEDS.search(bare)
    said = _sentence(feeds[0], results) if feeds else ""
    if not feeds or not said:
        return bare
    lines = textwrap.wrap(said, COLUMNS - len(FIELD), break_long_words=False, break_on_hyphens=False)
    head = FIELD + f"\n{NEXT}".join(lines) + "\n"
    return bare[: feeds.end()] + head + bare[feeds.end() :]


def pages(results: Path) -> dict[Path, str]:
    """Return the text that each experiment's file should have."""
    found = sorted((CONF / "experiment").rglob("*.yaml"))
    return {path: with_expectation(path.read_text(encoding="utf-8"), results) for path in found}


def _sentence(feeds: str, results: Path) -> str:
    """Say what the first artifact of these that has a table came to, and what it cost; nothing where none has one."""
    for name in re.findall(r"\b\w+/\w+\b", feeds):
        if name in catalogue.find():
            for path in sorted((results / name).glob("*/table.json")):
                table = json.loads(path.read_text(encoding="utf-8"))
                return f"{_number(catalogue.load(name), table)}; {_cost(table, results)}"
    return ""


def _number(artifact: Artifact, table: Mapping[str, Any]) -> str:
    """Name a measured value of a table with its place: the first that has a spread, else the last."""
    measured = {name: metric for name, metric in artifact.metrics.items() if metric.measured}
    rows = [row for row in table["rows"] if row["quantity"] in measured and not row.get("floor")]
    rows = [row for row in rows if row["own_mean"] is not None]
    if not rows:
        return f"{artifact.id} at scale {table['scale']}"
    row = next((row for row in rows if row["own_std"]), rows[-1])
    metric, labels = measured[row["quantity"]], [axis.values[row[name]].label for name, axis in artifact.axes.items()]
    value = metric.text(row["own_mean"])
    if row["own_std"]:
        value += f" ± {metric.text(row['own_std'])} over {row['own_seeds']} seeds"
    return f"{artifact.id} at scale {table['scale']}, {', '.join(labels)}: {metric.title} {value}"


def _cost(table: Mapping[str, Any], results: Path) -> str:
    if table["scale"] == EXACT:
        return "it is arithmetic and takes seconds"
    seconds = [json.loads(record_path(results, cell).read_bytes())["seconds"] for cell in table["cells"]]
    return f"its {len(seconds)} cells took {duration(sum(seconds))} of one processor core"
