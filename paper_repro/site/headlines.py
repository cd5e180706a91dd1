"""The headline claims of the papers: the paper's number, ours, the regime of our models and public replications."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paper_repro.base import typed_yaml
from paper_repro.cells.records import Record
from paper_repro.tables.publish import counted
from paper_repro.tables.spec import PAPERS
from paper_repro.tables.table import count_text

LIST = PAPERS / "headlines.yaml"
KEYS = ("claim", "name", "paper", "sentence", "replications")
Table = Mapping[str, Any]


class Headline(NamedTuple):
    """One row of the headline table; ``claim`` is that of a table.json, None where no table has it."""

    name: str
    paper: str
    sentence: str
    replications: Sequence[Mapping[str, str]]
    claim: Mapping[str, Any] | None
    artifact: str
    scale: str
    regime: str


def headlines(tables: Iterable[Table], record_of: Callable[[str], Record | None], path: Path = LIST) -> list[Headline]:
    """Return the rows of the headline table, each from its artifact's table of the largest scale."""
    found, by_id = list[Headline](), {table["artifact"]: table for table in counted(tables)}
    for node in typed_yaml.read(path).elements():
        typed_yaml.entries(node, KEYS)
        row = node.plain()
        artifact, _, name = row["claim"].partition("#")
        table = by_id.get(artifact, {"claims": [], "scale": ""})
        claim = next((one for one in table["claims"] if name == one["id"]), None)
        where = (claim, artifact, table["scale"], regime(table, record_of) if claim else "")
        found.append(Headline(row["name"], row["paper"], row["sentence"], row["replications"], *where))
    return found


def regime(table: Table, record_of: Callable[[str], Record | None]) -> str:
    """Return data, parameters and training tokens (or examples) for each parameter of a table's models."""
    records = [record_of(cell) for cell, place in table["cells"].items() if "baseline" not in place]
    ratios, unit = list[float](), "examples"
    for record in records:
        data, training = (record.config.get(key) or {} for key in ("data", "training")) if record else ({}, {})
        if record is not None and record.parameters and "batch_size" in data and "steps" in training:
            unit = "tokens" if "window" in data else unit
            seen = training["steps"] * training.get("accumulate", 1) * data["batch_size"] * data.get("window", 1)
            ratios.append(seen / record.parameters)
    ends = [count_text(end) if end >= 10 else f"{end:.2g}" for end in (min(ratios), max(ratios))] if ratios else []
    return "; ".join([table["made_of"], *([f"{' to '.join(dict.fromkeys(ends))} {unit} a parameter"] if ends else [])])


def adjusted(claims: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return for each claim its p-value adjusted for all claims that have one (Benjamini and Hochberg, 1995)."""
    from scipy.stats import false_discovery_control

    known = [place for place, claim in enumerate(claims) if claim["p"] is not None]
    found: list[float | None] = [None] * len(claims)
    for place, value in zip(known, false_discovery_control([claims[one]["p"] for one in known]), strict=True):
        found[place] = float(value)
    return found


def misses(claims: Iterable[Mapping[str, Any]]) -> str:
    """Say how many of the intervals miss by chance."""
    count = sum(1 for claim in claims if claim["estimate"] and claim["estimate"]["items"] != "exact")
    return f"Of {count} intervals of 95 %, about {count / 20:.0f} miss their true value by chance."
