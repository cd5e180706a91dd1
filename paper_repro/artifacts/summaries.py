"""Numbers computed from a whole table, beside those that the paper prints."""

from typing import TYPE_CHECKING, Any

from paper_repro.artifacts import verdicts
from paper_repro.artifacts.artifact import Metric, Number
from paper_repro.artifacts.typesetting import Grid

if TYPE_CHECKING:
    from paper_repro.artifacts.tables import Table


def grid(table: "Table") -> Grid:
    """Return a line for each number: its title, the paper's, ours and the verdict."""
    computed, signs, rows = table.summary(), table.signs(), []
    for name, item in table.artifact.summary.items():
        numbers = (computed.get(name), item.published)
        ours, printed = (None if one is None else f"{one:.{item.digits}f}{item.unit}" for one in numbers)
        ours = "not run" if ours is None else f"{signs.get(name, '')}{ours}"
        rows.append([item.title, printed or "", ours, verdict(table, name, computed.get(name))])
    return Grid(["", "paper", "ours", "verdict"], rows)


def document(table: "Table") -> dict[str, Any]:
    """Return the content of table.json under "summary"."""
    computed, signs = table.summary(), table.signs()
    return {
        name: {
            "paper": item.published,
            "ours": computed.get(name),
            **({"sign": signs[name]} if name in signs else {}),
            "verdict": verdict(table, name, computed.get(name)),
        }
        for name, item in table.artifact.summary.items()
    }


def verdict(table: "Table", name: str, value: float | None) -> str:
    """Return the verdict on one of the numbers: that of our value, within the YAML's tolerance or not."""
    item = table.artifact.summary[name]
    if value is None:
        return verdicts.NOT_RUN
    if item.published is None or item.tolerance is None:
        return ""
    text = Metric(item.title, item.unit, "none", item.digits).text
    if not table.view.plan.scale.comparable and not item.from_paper:
        return verdicts.REDUCED
    if verdicts.within(value, Number(item.published), item.tolerance, text):
        return verdicts.FITTED if item.fitted or table.artifact.fitted else verdicts.REPRODUCED
    return f"{verdicts.OFF} {value - item.published:+.{item.digits}f}{item.unit.replace('%', 'points')}"
