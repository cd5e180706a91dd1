"""Tables: a pure function of an artifact and its records; the same records give the same bytes."""

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from tabulate import tabulate

from paper_repro.base.errors import UsageError
from paper_repro.base.files import write_atomically
from paper_repro.cells import measurements
from paper_repro.cells.planned import Key
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FAILED, FINISHED
from paper_repro.tables import claims, stats
from paper_repro.tables.claims import Estimate, Judgement
from paper_repro.tables.figure import Figure, figure_of
from paper_repro.tables.plan import Plan
from paper_repro.tables.spec import EXACT, Artifact, Column, Metric, Number, Tolerance
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import (
    NOT_RUN,
    MeasuredBaseline,
    Point,
    View,
    build,
    column_value,
    csv_text,
    lack,
    made_of,
    trouble,
    values,
)

REPRODUCED, OFF, REDUCED, ALTERED, FITTED = "reproduced", "off by", "reduced scale", "altered", "fitted"
PAPER, REFERENCE, OWN, AS_REFERENCE, VERDICT = "paper", "reference", "own", "as reference", "verdict"
"""The kinds of columns of a metric."""
CHANGED, NOT_BEATEN = " †", " ‡"
"""Behind a number that comes from other code or data than there is now; behind one that beats no trivial baseline."""
MOST_PARTS = 8
"""Parts of an estimate that a table shows; table.json has all of them."""
NARROWEST = 12
"""Characters of a column in a terminal, at least."""
BOLD = ("\x02", "\x03")
"""Stand for bold in a grid until its text has been escaped."""


@dataclass(frozen=True)
class Grid:
    """A rectangle of text."""

    headers: list[str]
    rows: list[list[str]]

    def latex(self, comment: str) -> str:
        """Write a tabular of booktabs, under a comment."""
        rows = [[_line(cell) for cell in row] for row in self.rows]
        table = tabulate(rows, self.headers, tablefmt="latex_booktabs", disable_numparse=True)
        bold = table.replace(BOLD[0], "\\textbf{").replace(BOLD[1], "}")
        return f"% {comment}; needs the booktabs package\n{bold}\n"

    def within(self, width: int | None) -> str:
        """Write it as a file has it, or where that is too wide for a terminal with its columns wrapped."""
        headers, *rows = [[in_markdown(cell) for cell in row] for row in [self.headers, *self.rows]]
        piped = [[cell.replace("|", "\\|") for cell in row] for row in [headers, *rows]]
        table = tabulate(piped[1:], piped[0], tablefmt="github", disable_numparse=True)
        if width is None or max(map(len, table.splitlines())) <= width:
            return table
        limit: Any = max(NARROWEST, width // len(headers) - 2)
        limits = {"maxcolwidths": limit, "maxheadercolwidths": limit}
        return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, **limits)


def in_markdown(text: str) -> str:
    """Return text as one line of Markdown without HTML, and without emphasis but ours."""
    plain = re.sub(r"\*(?=\w)|(?<=\w)\*(?!\*)", r"\\*", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", _line(text)))
    return plain.replace(BOLD[0], "**").replace(BOLD[1], "**")


def _bold(text: str) -> str:
    return f"{BOLD[0]}{text}{BOLD[1]}" if text else ""


def _line(text: str) -> str:
    return " ".join(text.split())


class Table:
    """Rows times metrics, with verdicts, claims and notes.

    A table that computes subclasses this in the Python file beside its YAML and overrides ``summary`` or ``remarks``.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.artifact: Artifact = view.artifact

    def signs(self) -> dict[str, str]:
        """Return the signs, "< " or "> ", before the numbers of ``summary`` that are bounds."""
        return {}

    def summary(self) -> Mapping[str, float | Samples]:
        """Return the numbers computed from the whole table, by the names of the artifact's ``summary``.

        Of values by seed it has the mean, and nothing where there are none.
        """
        return {}

    def remarks(self) -> list[str]:
        """Return sentences computed from the records, printed with the notes."""
        return []

    def write(self, folder: Path) -> list[Path]:
        content = {
            "table.md": self.markdown(),
            "table.csv": self.csv(),
            "table.tex": self.grid().latex(f"{self.artifact.id}, scale {self.view.plan.scale_name}"),
            "table.json": json.dumps(self.document(), indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in content.items():
            write_atomically(folder / name, text.encode())
        return [folder / name for name in content]

    def markdown(self, width: int | None = None) -> str:
        """Return the whole document, for a file or for a terminal of a width."""
        plan = self.view.plan
        altered = f"Altered by {' '.join(plan.altering)}: not compared with the paper." if plan.altering else ""
        headline, altered, total = (_bold(text) for text in (self.headline, altered, self.total()))
        same = f"The same in all rows: {same}." if (same := self._same()) else ""
        parts = [f"# {self.artifact.id}: {self.artifact.title}", self._lead(), headline, altered]
        parts = [*map(in_markdown, parts), self.grid().within(width), in_markdown(same), in_markdown(total)]
        if self.artifact.summary:
            parts.append(self.summary_grid().within(width))
        if self.judgements:
            parts += ["## Claims", self.claims_grid().within(width)]
        notes = "\n".join(f"* {in_markdown(note)}" for note in self.notes())
        return "\n\n".join(filter(None, [*parts, "## Notes", notes])) + "\n"

    def grid(self) -> Grid:
        """Return one line for each point: its place, the metrics, and the settings that differ between points."""
        artifact, columns = self.artifact, {k: v for k, v in self.artifact.columns.items() if k not in self._folded}
        layout = [(name, kind, header) for name, own in self._headers.items() for kind, header in own.items()]
        headers = [artifact.axes[axis].title for axis in self._axes] + [header for *_, header in layout]
        best = {(name, kind): self._best(name, kind) for name, kind, _ in layout}
        rows = []
        for key, point in self.view.points.items():
            row = [artifact.axes[axis].values[value].label for axis, value in key if axis in self._axes]
            row += [self._cell(name, kind, point, key in best[name, kind]) for name, kind, _ in layout]
            rows.append([*row, *(self._column_text(name, point) for name in columns)])
        for one, numbers in zip(self.view.baselines, self._baseline_rows, strict=True):
            texts = [self._baseline_cell(one, numbers.get(name), name, kind) for name, kind, _ in layout]
            rows.append([*self._baseline_labels(one), *texts, *[""] * len(columns)])
        return Grid([*headers, *(column.title for column in columns.values())], rows)

    def _column_text(self, name: str, point: Point) -> str:
        text = self._on_column(name, point)[2]
        return "" if text == NOT_RUN and self.view.judged(point) else text

    def _on_column(self, name: str, point: Point) -> tuple[float | None, str, str]:
        """Return a column's value at a point, and the word and the text of its comparison with the paper's."""
        column, printed = self.artifact.columns[name], self.artifact.printed(point.key, name)
        found = column_value(self.artifact, column, point, self.view.judged(point))
        return found, *on_column(column, printed, found, self.view.plan.scale.comparable)

    @cached_property
    def _axes(self) -> list[str]:
        """The axes whose values differ between rows; the first where none does."""
        keys = [dict(key) for key in self.view.points]
        several = [axis for axis in self.artifact.axes if len({key[axis] for key in keys}) > 1]
        return several or list(self.artifact.axes)[:1]

    @cached_property
    def _folded(self) -> dict[str, str]:
        """The columns with one value in all rows, each with its text."""
        points = self.view.points.values()
        texts = {name: {self._column_text(name, point) for point in points} for name in self.artifact.columns}
        return {name: found.pop() for name, found in texts.items() if len(points) > 1 and len(found) == 1}

    def _same(self) -> str:
        axes, first = self.artifact.axes, dict(next(iter(self.view.points), ()))
        places = [
            f"{axes[axis].title} {axes[axis].values[first[axis]].label}" for axis in axes if axis not in self._axes
        ]
        columns = [f"{self.artifact.columns[name].title} {text}" for name, text in self._folded.items() if text]
        return ", ".join([*places, *columns]) if first else ""

    @cached_property
    def _headers(self) -> dict[str, dict[str, str]]:
        view, found = self.view, dict[str, dict[str, str]]()
        has_reference = any(point.reference for point in view.points.values())
        for name, metric in self.artifact.metrics.items():
            title, printed = metric.title, self.artifact.published is not None and bool(metric.published)
            headers = {PAPER: f"{title}: paper"} if printed else {}
            if metric.measured and has_reference:
                headers[REFERENCE] = f"{title}: reference"
                headers |= {OWN: f"{title}: yours", AS_REFERENCE: AS_REFERENCE} if view.has_own else {}
            elif metric.measured:
                whose = "ours" if view.own_root_is_reference else "yours"
                headers[OWN] = f"{title}: {whose}" if printed else title
            found[name] = headers | ({VERDICT: VERDICT} if metric.measured and printed else {})
        return found

    def _cell(self, name: str, kind: str, point: Point, bold: bool) -> str:
        metric, row = self.artifact.metrics[name], self._rows[point.key, name]
        if kind == VERDICT:
            text = self.verdict(name, point)[1]
            return "" if text == NOT_RUN and self.view.judged(point) else text
        if kind == AS_REFERENCE:
            return str(row["as_reference"])
        mean, std = row[f"{kind}_mean"], row[f"{kind}_std"]
        if mean is None:
            return "" if kind == PAPER else self.absence(point, name, kind)
        exact = kind == PAPER and std is None and metric.format == "f"  # as the paper prints it
        text = f"{mean:.10g}" if exact else _spread(metric, mean, std)
        text = _bold(text) if bold else text
        if kind == PAPER:
            return text
        if (kind == OWN) == self.view.has_own and row.get("beaten") is False:
            text += NOT_BEATEN
        if kind == OWN and any(cell.id in self.view.changed for cell in point.cells.values()):
            text += CHANGED
        return text

    def verdict(self, name: str, point: Point) -> tuple[str, str]:
        """Return the verdict on a metric at a point, as a word and as a table prints it."""
        metric, plan = self.artifact.metrics[name], self.view.plan
        found, printed = values(self.view.judged(point), name), self.artifact.printed(point.key, name)
        options = plan.scale.comparable, bool(plan.altering), self.artifact.fitted
        return on_metric(metric, printed, found, self.artifact.tolerances.get(name), *options)

    def absence(self, point: Point, name: str, source: str) -> str:
        """Return the text in the place of a missing number; ``source`` is own or reference."""
        found = getattr(point, source)
        if any(record.status == FAILED for record in found.values()) and point.key in self._failed:
            return f"{FAILED} [{self._failed.index(point.key) + 1}]"
        known = trouble(found) or lack(found, name) or self.view.unnamed.get(name)
        return known or ("" if found else NOT_RUN)

    def _best(self, name: str, kind: str) -> set[Key]:
        """Return the keys of the best values, as printed, of each group of ``best_within`` that has several."""
        metric = self.artifact.metrics[name]
        if not self.artifact.best_within or metric.direction == "none" or kind not in (PAPER, OWN, REFERENCE):
            return set()
        sign = 1.0 if metric.direction == "lower" else -1.0
        groups: dict[Any, list[tuple[float, Key]]] = {}
        for key in self.view.points:
            if (value := self._rows[key, name][f"{kind}_mean"]) is not None:
                group = tuple(dict(key)[axis] for axis in self.artifact.best_within)
                groups.setdefault(group, []).append((sign * float(metric.text(value)), key))
        several = [members for members in groups.values() if len(members) > 1]
        return {key for members in several for value, key in members if value == min(members)[0]}

    def total(self) -> str:
        """Return how many numbers of a fitted table lie within their tolerances; empty for other tables."""
        names = [name for name, spec in self.artifact.metrics.items() if spec.measured]
        found = [self._rows[key, name]["verdict"] for key in self.view.points for name in names]
        judged = [word for word in found if word in (FITTED, OFF)]
        if not self.artifact.fitted or not judged:
            return ""
        rules = {rule(self.artifact.tolerances[name]) for name in names if name in self.artifact.tolerances}
        within = f"{judged.count(FITTED)} of {len(judged)} measured numbers lie {' or '.join(sorted(rules))}"
        return f"{within}, with settings that were fitted to them."

    def _baseline_labels(self, one: MeasuredBaseline) -> list[str]:
        """Return a baseline's place; the first axis on which its models differ carries its name."""
        common, axes = one.common(), self.artifact.axes
        place = {axis: axes[axis].values[common[axis]].label if axis in common else "" for axis in self._axes}
        name = one.spec.label
        if [other.name for other in self.view.baselines].count(one.name) > 1:
            own = tuple((axis, value) for axis, value in common.items() if len(axes[axis].values) > 1)
            name = f"{name}, {self.artifact.label(own)}" if own else name
        free = next((axis for axis in self._axes if axis not in common), self._axes[0])
        place[free] = f"Baseline: {name}"
        return list(place.values())

    def _baseline_cell(self, one: MeasuredBaseline, row: Mapping[str, Any] | None, name: str, kind: str) -> str:
        metric = self.artifact.metrics[name]
        if not metric.measured or kind not in (REFERENCE, OWN):
            return ""
        if row is None or row[f"{kind}_mean"] is None:
            return NOT_RUN if name in one.spec.metrics else ""
        spread = row[f"{kind}_std"]
        varies = spread is not None and metric.text(spread) != metric.text(0.0)
        return _spread(metric, row[f"{kind}_mean"], spread if varies else None)

    def summary_grid(self) -> Grid:
        rows = []
        for name, item in self.artifact.summary.items():
            own = self._summary.get(name)
            printed = "" if item.published is None else f"{item.published:.{item.digits}f}{item.unit}"
            text = NOT_RUN if own is None else f"{self.signs().get(name, '')}{own:.{item.digits}f}{item.unit}"
            rows.append([item.title, printed, text, self._summary_verdict(name)])
        return Grid(["", "paper", "ours", VERDICT], rows)

    @cached_property
    def _summary(self) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, found in self.summary().items():
            if not isinstance(found, Mapping):
                numbers[name] = found
            elif found:
                numbers[name] = stats.mean([*found.values()])
        return numbers

    def _summary_verdict(self, name: str) -> str:
        item, value = self.artifact.summary[name], self._summary.get(name)
        if value is None:
            return NOT_RUN
        if item.published is None or item.tolerance is None:
            return ""
        if not self.view.plan.scale.comparable and not item.from_paper:
            return REDUCED
        text = Metric(item.title, item.unit, "none", item.digits).text
        if within(value, Number(item.published), item.tolerance, text):
            return FITTED if item.fitted or self.artifact.fitted else REPRODUCED
        return f"{OFF} {value - item.published:+.{item.digits}f}{item.unit.replace('%', 'points')}"

    @cached_property
    def judgements(self) -> list[Judgement]:
        scale = self.view.plan.scale_name
        return [claims.judge(one, self.view) for one in self.artifact.claims if not one.scales or scale in one.scales]

    @property
    def headline(self) -> str:
        """The first claim's estimate, threshold and word; empty without a claim."""
        return next((judgement.sentence for judgement in self.judgements), "")

    def claims_grid(self) -> Grid:
        rows = []
        for one in self.judgements:
            whose = f"{'ours' if one.claim.ours else 'the paper'}: {one.claim.where}"
            rows.append([one.claim.id, whose, one.claim.says, one.text, one.claim.threshold.text, _bold(one.word)])
            parts = one.estimate.parts
            rows += [["", "", label, one.estimate.numbers(part), "", ""] for label, part in parts[:MOST_PARTS]]
            if len(parts) > MOST_PARTS:
                rows.append(["", "", f"table.json has {len(parts) - MOST_PARTS} more parts", "", "", ""])
        return Grid(["claim", "whose", "says", "estimate", "claimed", "here"], rows)

    def notes(self) -> list[str]:
        view, artifact = self.view, self.artifact
        notes = [*artifact.notes, *view.plan.scale.notes, *self.remarks()]
        notes += [f"Deviation from the paper, also at scale paper: {text}" for text in artifact.deviations]
        about = {one.spec.label: one.spec.about for one in view.baselines if one.spec.about}
        notes += [f"Baseline, {label}: {text}" for label, text in about.items()]
        if view.baselines and any(view.is_beaten(*pair) is False for pair in product(view.points, artifact.metrics)):
            notes.append(f"{NOT_BEATEN.strip()} does not beat its trivial baseline.")
        alone = (one for one in self.judgements if one.estimate.items == claims.SEEDS_ONLY and one.estimate.interval)
        if ids := ", ".join(one.claim.id for one in alone):
            notes.append(f"Intervals over seeds only, without the error of a sample of test items: {ids}.")
        by_rule: dict[str, list[str]] = {}
        titles = {name: spec.title for name, spec in artifact.quantities.items()}
        for name, tolerance in artifact.tolerances.items():
            by_rule.setdefault(f"{rule(tolerance)}: {tolerance.reason}", []).append(titles[name])
        measured = {spec.title for spec in artifact.metrics.values()}
        for text, names in by_rule.items():
            word = FITTED if artifact.fitted and measured.issuperset(names) else REPRODUCED
            notes.append(f"{word.capitalize()} ({', '.join(names)}) means {text}")
        if artifact.published is not None:
            notes.append(f"Repeats in the paper: {artifact.published.repeats}.")
        for title, source in (("Yours", "own"), ("Reference", "reference")):
            found = [record for point in view.points.values() for record in getattr(point, source).values()]
            if found:
                notes.append(f"{'Made' if view.own_root_is_reference else title + ', made'} {_origin(found)}.")
        for point in view.points.values():
            if text := trouble(view.judged(point)):
                number = f"[{self._failed.index(point.key) + 1}] " if point.key in self._failed else ""
                notes.append(f"{number}{artifact.label(point.key)}: {textwrap.shorten(text, 300)}.")
        if changed := measurements.told(view.changed):
            notes.append(f"{CHANGED.strip()} {changed}.")
        reasons: dict[str, dict[str, None]] = {}
        judged = [record for point in view.points.values() for record in view.judged(point).values()]
        for name, reason in ((name, why) for record in judged for name, why in record.unavailable.items()):
            if name in artifact.metrics:
                reasons.setdefault(reason, {})[artifact.metrics[name].title] = None
        return notes + [f"{', '.join(names)}: n/a, {reason}" for reason, names in reasons.items()]

    @cached_property
    def _failed(self) -> list[Key]:
        """The places without a result because a cell failed; a note says why."""
        statuses = {p.key: {one.status for one in self.view.judged(p).values()} for p in self.view.points.values()}
        return [key for key, found in statuses.items() if FAILED in found and FINISHED not in found]

    def _lead(self) -> str:
        plan, artifact = self.view.plan, self.artifact
        scale = "" if plan.scale_name == EXACT else f" Scale {plan.scale_name}: {plan.scale.about}"
        most = max((len(point.cells) for point in self.view.points.values()), default=0)
        more = f", and at some places up to {most} seeds" if most > len(plan.seeds) else ""
        seeds = f" Seeds {', '.join(map(str, plan.seeds))}{more}." if len(plan.seeds) > 1 else ""
        return f"{artifact.source.paper}, {artifact.source.where}. Made from: {made_of(self.view)}.{scale}{seeds}"

    @cached_property
    def _rows(self) -> dict[tuple[Key, str], dict[str, Any]]:
        """One row for each point and metric or column, with everything that a program wants to compare."""
        rows: dict[tuple[Key, str], dict[str, Any]] = {}
        for (key, point), name in product(self.view.points.items(), self.artifact.quantities):
            printed = self.artifact.printed(key, name)
            row = {**dict(key), "quantity": name, "paper_mean": printed.mean if printed else None}
            if name in self.artifact.columns:
                found, word, _ = self._on_column(name, point)
                row |= {"paper_std": None, **stats.columns(OWN, [] if found is None else [found]), "verdict": word}
            else:
                own, reference = values(point.own, name), values(point.reference, name)
                word = self.verdict(name, point)[0] if self.artifact.metrics[name].measured else ""
                row |= {"paper_std": printed.std if printed else None, **self._columns(name, own, reference, word)}
                if not self.view.own_root_is_reference:
                    row["as_reference"] = agreement(own, reference)
                if (beaten := self.view.is_beaten(key, name)) is not None:
                    row["beaten"] = beaten
            rows[key, name] = row
        return rows

    @cached_property
    def _baseline_rows(self) -> list[dict[str, dict[str, Any]]]:
        """For each baseline its rows by metric."""
        found: list[dict[str, dict[str, Any]]] = []
        for one in self.view.baselines:
            place = {axis: one.common().get(axis, "") for axis in self.artifact.axes}
            found.append({})
            for name, metric in self.artifact.metrics.items():
                if metric.measured and one.samples(name):
                    row = {**place, "quantity": name, "paper_mean": None, "paper_std": None}
                    row |= self._columns(name, one.samples(name, one.own), one.samples(name, one.reference), "")
                    found[-1][name] = {**row, "baseline": one.name}
        return found

    def long_rows(self) -> list[dict[str, Any]]:
        """Return the rows of all points and baselines."""
        return [*self._rows.values(), *(row for rows in self._baseline_rows for row in rows.values())]

    def _columns(self, name: str, own: Samples, reference: Samples, verdict: str) -> dict[str, Any]:
        factor = self.artifact.metrics[name].factor
        row = {**stats.columns(OWN, [value / factor for value in own.values()]), "verdict": verdict}
        if not self.view.own_root_is_reference:
            row |= stats.columns(REFERENCE, [value / factor for value in reference.values()])
        return row

    def document(self) -> dict[str, Any]:
        plan = self.view.plan
        return {
            "artifact": self.artifact.id,
            "title": self.artifact.title,
            "source": f"{self.artifact.source.paper}, {self.artifact.source.where}",
            "scale": plan.scale_name,
            "made_of": made_of(self.view),
            "comparable": plan.scale.comparable and not plan.altering,
            "seeds": list(plan.seeds),
            "overrides": plan.altering,
            "headline": self.headline,
            "rows": self.long_rows(),
            "summary": {
                name: {
                    "paper": item.published,
                    "ours": self._summary.get(name),
                    **({"sign": sign} if (sign := self.signs().get(name)) else {}),
                    "verdict": self._summary_verdict(name),
                }
                for name, item in self.artifact.summary.items()
            },
            "total": self.total(),
            "claims": [_claim_document(judgement) for judgement in self.judgements],
            "notes": self.notes(),
            "cells": self._cells(),
        }

    def _cells(self) -> dict[str, Any]:
        """Return the judged records' own ids, which do not depend on the data that a reader has."""
        found: dict[str, Any] = {}
        places = [(p.cells, self.view.judged(p), dict(p.key)) for p in self.view.points.values()]
        places += [(one.cells, one.found, {"baseline": one.name}) for one in self.view.baselines]
        for cells, own, place in places:
            for seed, cell in cells.items():
                found[own[seed].cell if seed in own else cell.id] = {**place, "seed": seed}
        return found

    def csv(self) -> str:
        return csv_text([{name: value for name, value in row.items() if name != "beaten"} for row in self.long_rows()])


def check(artifact: Artifact) -> None:
    """Import the Python code of an artifact before anything is trained."""
    for name, base in ((artifact.table, Table), (artifact.figure, Figure)):
        artifact.kind(name, base)
    for claim in artifact.claims:
        if isinstance(claim.form, str):
            artifact.function(claim.form, claim.line)


def table_of(view: View) -> Table:
    """Return the table of the kind that the YAML names or a Python file beside it defines, or a plain one."""
    found: Table = (view.artifact.kind(view.artifact.table, Table) or Table)(view)
    return found


def render(plan: Plan, runs: Path, reference: Path | None) -> tuple[Table, list[Path]]:
    """Write the table, and the figure where the artifact draws one, below ``runs``.

    ``reference`` has the results to show beside the user's own; None where ``runs`` is itself the reference.
    """
    folder = runs / plan.folder
    try:
        table = table_of(build(plan, runs, reference))
        written = table.write(folder)
        if (figure := figure_of(table.view, table.headline)) is not None:
            written += figure.write(folder)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: cannot write there ({error.strerror}); every record is whole: free some "
            "space, or say runs=DIR for another folder, and use --render"
        ) from error
    return table, written


def _claim_document(one: Judgement) -> dict[str, Any]:
    estimate, claim = one.estimate, one.claim
    found: dict[str, Any] | None = None
    if (interval := estimate.interval) is not None:
        found = {"of": estimate.of, "to": estimate.to, "kind": estimate.kind, **_ends(estimate, interval)}
        found |= {"seeds": interval.count, "items": estimate.items, "text": estimate.text}
    return {
        "id": claim.id,
        "whose": "ours" if claim.ours else "paper",
        "where": claim.where,
        "says": claim.says,
        "verdict": one.verdict,
        "word": one.word,
        "estimate": found,
        "claimed": claim.threshold.text,
        "p": None if one.p_value is None else stats.rounded(one.p_value),
        "because": one.because,
        "parts": [
            {"label": label, **_ends(estimate, part), "text": estimate.numbers(part)} for label, part in estimate.parts
        ],
    }


def _ends(estimate: Estimate, interval: stats.Interval) -> dict[str, float | None]:
    ends = {"value": interval.mean, "low": interval.low, "high": interval.high}
    return {name: stats.rounded(estimate.shown(end)) if math.isfinite(end) else None for name, end in ends.items()}


def _spread(metric: Metric, mean: float, std: float | None) -> str:
    return metric.text(mean) if std is None else f"{metric.text(mean)} ± {metric.text(std)}"


def _origin(found: Sequence[Record]) -> str:
    devices = sorted({str(record.provenance.get("device")) for record in found})
    torches = sorted({str(record.provenance.get("versions", {}).get("torch", "none")) for record in found})
    code = [each for record in found for each in measurements.code_of(record)]
    commits = sorted({(each["commit"] or "")[:10] or "unknown (no git there)" for each in code})
    dirty = " with uncommitted changes" if any(each["dirty"] for each in code) else ""
    return f"on {'; '.join(devices)}, torch {', '.join(torches)}, commit {', '.join(commits)}{dirty}"


def on_metric(
    metric: Metric,
    printed: Number | None,
    found: Mapping[int, float],
    tolerance: Tolerance | None,
    comparable: bool,
    altered: bool,
    fitted: bool = False,
) -> tuple[str, str]:
    """Compare a metric's mean over seeds with the paper's number; return the word, and the text of a table."""
    if not found:
        return NOT_RUN, NOT_RUN
    if printed is None or tolerance is None:
        return "", ""
    if not altered and not comparable:
        return REDUCED, REDUCED
    ours = stats.mean(list(found.values())) / metric.factor
    change = _relative(ours, printed.mean)
    if not altered and not within(ours, printed, tolerance, metric.text):
        return OFF, f"{OFF} {change}"
    word = ALTERED if altered else FITTED if fitted else REPRODUCED
    return word, f"{word} ({change})"


def on_column(column: Column, printed: Number | None, found: float | None, comparable: bool = True) -> tuple[str, str]:
    """Compare a counted column with the printed digits; return the word, and the text of a table."""
    if found is None:
        return NOT_RUN, NOT_RUN
    if printed is None:
        return "", column.text(found)
    wanted = f"{printed.mean:.{column.digits}f}{column.unit}"
    if not comparable:
        return REDUCED, f"{wanted}, {REDUCED}: {found:,.0f}"
    if column.text(found) == wanted:
        return REPRODUCED, f"{wanted} = {found:,.0f}"
    return OFF, f"{wanted}, ours {found:,.0f}"


def within(ours: float, printed: Number, tolerance: Tolerance, text: Any) -> bool:
    """Return whether a number lies within the tolerance of the printed one."""
    limits = (tolerance.published_stds, printed.std), (tolerance.relative, abs(printed.mean)), (tolerance.absolute, 1.0)
    for factor, size in limits:
        if factor is not None:
            return abs(ours - printed.mean) <= factor * (size or 0.0)
    return bool(text(ours) == text(printed.mean))


def rule(tolerance: Tolerance) -> str:
    if tolerance.published_stds is not None:
        return f"within {tolerance.published_stds:g} published standard deviation of the published mean"
    if tolerance.relative is not None:
        return f"within {100 * tolerance.relative:g} %"
    return "equal to the printed digits" if tolerance.absolute is None else f"within {tolerance.absolute:g}"


def agreement(own: Mapping[int, float], reference: Mapping[int, float]) -> str:
    """Return whether Welch's interval of the difference to the reference holds zero.

    Seeds count as independent: on another processor the same seed is a new sample.
    """
    if not own or not reference:
        return ""
    if own == reference:
        return "equal"
    if len(own) < 2 or len(reference) < 2:
        return "one seed"
    interval = stats.welch(list(own.values()), list(reference.values()))
    return "agrees" if interval.low <= 0.0 <= interval.high else "differs"


def _relative(ours: float, printed: float) -> str:
    if printed == 0.0:
        return f"{ours:+.3g}"
    percent = 100.0 * (ours - printed) / abs(printed)
    if not math.isfinite(percent):
        return f"{ours:.3g}"
    return f"{percent:+.0f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"
