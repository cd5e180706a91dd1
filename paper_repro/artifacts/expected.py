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
from paper_repro.base.durations import duration
from paper_repro.cells.records import record_path

FIELD = "# Expected:   "
NEXT = "#             "
COLUMNS = 124
_LINES = re.compile(rf"^{FIELD}.*\n(?:{NEXT}.*\n)*", re.MULTILINE)
_FEEDS = re.compile(r"^# Feeds: .*\n", re.MULTILINE)
_TRAINS = re.compile(r"^# Command: .*scripts/train\.py", re.MULTILINE)


def with_expectation(text: str, results: Path, experiment: str) -> str:
    """Return the text of an experiment's file whose head says what one of its published artifacts came to.

    That is the first of those that the line "Feeds" names and that are made of this experiment, else the first of all.
    Where the head's own command trains a model at the paper's settings, the artifact is named as another command.
    """
    bare = _LINES.sub("", text)
    feeds = _FEEDS.search(bare)
    said = _sentence(feeds[0], results, experiment) if feeds else ""
    if said and _TRAINS.search(bare):
        said = f"not run at these settings; reproduce.py {said}"
    if not feeds or not said:
        return bare
    lines = textwrap.wrap(said, COLUMNS - len(FIELD), break_long_words=False, break_on_hyphens=False)
    head = FIELD + f"\n{NEXT}".join(lines) + "\n"
    return bare[: feeds.end()] + head + bare[feeds.end() :]


def pages(results: Path) -> dict[Path, str]:
    """Return the text that each experiment's file should have."""
    found = sorted((CONF / "experiment").rglob("*.yaml"))
    names = {path: path.relative_to(CONF / "experiment").with_suffix("").as_posix() for path in found}
    return {path: with_expectation(path.read_text(encoding="utf-8"), results, name) for path, name in names.items()}


def _sentence(feeds: str, results: Path, experiment: str) -> str:
    """Say what one artifact of these that has a table came to, and what it cost; nothing where none has one."""
    known = [catalogue.load(name) for name in re.findall(r"\b\w+/\w+\b", feeds) if name in catalogue.find()]
    for artifact in sorted(known, key=lambda artifact: artifact.experiment != experiment):
        for path in sorted((results / artifact.id).glob("*/table.json")):
            table = json.loads(path.read_text(encoding="utf-8"))
            return f"{_number(artifact, table)}; {_cost(table, results)}"
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
        return "nothing is trained"
    seconds = [json.loads(record_path(results, cell).read_bytes())["seconds"] for cell in table["cells"]]
    return f"its {len(seconds)} cells took {duration(sum(seconds))} of one processor core"
