"""Chooses the published cells that are verified, one of each kind, and shows what the comparison gave."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from paper_repro.artifacts import catalogue
from paper_repro.artifacts import plan as plans
from paper_repro.artifacts.artifact import Artifact
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import TARGET
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.verify import Published, Verification

Kind = tuple[str, frozenset[str]]
"""An experiment and the classes that its ``model`` section names."""


@dataclass(frozen=True)
class Candidate:
    """A published cell and the artifact that shows it."""

    artifact: Artifact
    cell: PlannedCell

    @property
    def kind(self) -> Kind:
        return self.artifact.experiment, frozenset(_classes(self.cell.config.get("model")))

    @property
    def place(self) -> str:
        """The cell's place as ``--config`` takes it."""
        return ",".join(f"{axis}={value}" for axis, value in self.cell.key)


def choose(names: Sequence[str], scale: str | None, published: Published) -> list[Candidate]:
    """Choose of each kind the cell that took the least time.

    Args:
        names: the artifacts, each of which shows all its kinds; none for every kind that was published, once.
        scale: the scale word; None for all that are published.
        published: the records.

    Raises:
        UsageError: an unknown artifact, or one of which nothing is published.
    """
    if not names:
        found = (one for name in catalogue.find() for one in _candidates(catalogue.load(name), scale, published.root))
        return _cheapest(found, published)
    chosen = []
    for name in names:
        candidates = _candidates(catalogue.load(name), scale, published.root)
        if not candidates:
            at = f" at scale {scale}" if scale else ""
            raise UsageError(f"{name}: {published.root} has no results{at}; --list shows which scales are published")
        chosen += _cheapest(candidates, published)
    return chosen


def table(rows: Iterable[tuple[Candidate, Verification]]) -> str:
    """Show one line for each cell; long reasons stand below the table."""
    lines: list[list[str]] = []
    reasons: list[str] = []
    for candidate, found in rows:
        verdict = found.verdict
        if found.why:
            reasons += [found.why] if found.why not in reasons else []
            verdict = f"{verdict} [{reasons.index(found.why) + 1}]"
        difference = "" if found.difference is None else f"{found.difference:.1e}"
        cell = candidate.cell
        lines.append([candidate.artifact.id, candidate.place, str(cell.seed), found.compared, difference, verdict])
    headers = ["artifact", "cell", "seed", "compared", "largest relative difference", "verdict"]
    text = tabulate(lines, headers, tablefmt="simple", disable_numparse=True)
    return "\n".join([text, *(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))])


def _candidates(artifact: Artifact, scale: str | None, root: Path) -> list[Candidate]:
    """Return the cells of an artifact at each scale of which there are results."""
    words = artifact.scales if scale is None else [artifact.scale(scale)[0]]
    done = [word for word in words if (root / artifact.id / word / "table.json").is_file()]
    return [Candidate(artifact, cell) for word in done for cell in plans.make(artifact, word).cells]


def _cheapest(candidates: Iterable[Candidate], published: Published) -> list[Candidate]:
    """Return of each kind the cell whose record says the fewest seconds, or the first if none has a record."""
    best: dict[Kind, tuple[float, Candidate]] = {}
    for candidate in candidates:
        record = published.find(candidate.cell)
        seconds = float("inf") if record is None else record.seconds
        if candidate.kind not in best or seconds < best[candidate.kind][0]:
            best[candidate.kind] = seconds, candidate
    return [candidate for _, candidate in best.values()]


def _classes(node: Any) -> Iterator[str]:
    """Yield every class that a node of a config names."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from [value] if key == TARGET else _classes(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _classes(value)
