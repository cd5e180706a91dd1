"""Tables: a pure function of an artifact and its records; the same records give the same bytes."""

import csv
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from paper_repro.artifacts import claims, decisions, floors, intervals, made_of, summaries, verdicts
from paper_repro.artifacts.artifact import Artifact, Metric, Number
from paper_repro.artifacts.claim_rows import claim_document, claims_grid
from paper_repro.artifacts.floor_rows import floor_cells, floor_document, floor_lines
from paper_repro.artifacts.layouts import AS_REFERENCE, FILE, VERDICT, Layout
from paper_repro.artifacts.typesetting import BOLD, Grid, latex_table
from paper_repro.artifacts.views import Point, View, column_value, values
from paper_repro.base.files import write_atomically
from paper_repro.cells import changes, measurements
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FAILED, FINISHED


class Table:
    """Rows times metrics, with verdicts, claims and notes.

    A table that computes subclasses this in the Python file beside its YAML and overrides ``summary``.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.artifact: Artifact = view.artifact

    def signs(self) -> dict[str, str]:
        """Return what stands before the numbers of ``summary`` that are bounds: "< " or "> "."""
        return {}

    def summary(self) -> dict[str, float]:
        """Return the numbers computed from the whole table, by the names of the artifact's ``summary``."""
        return {}

    def remarks(self) -> list[str]:
        """Return sentences computed from the records, printed with the notes."""
        return []

    def write(self, folder: Path) -> list[Path]:
        """Write table.md, .csv, .tex and .json into ``folder``."""
        content = {
            "table.md": self.markdown(),
            "table.csv": self.csv(),
            "table.tex": self.latex(),
            "table.json": json.dumps(self.document(), indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in content.items():
            write_atomically(folder / name, text.encode())
        return [folder / name for name in content]

    def markdown(self, layout: Layout = FILE) -> str:
        """Return the whole document, as table.md has it or in another layout."""
        plan = self.view.plan
        parts = [layout.prose(f"# {self.artifact.id}: {self.artifact.title}"), layout.prose(self._lead())]
        if plan.altered:
            parts.append(layout.prose(f"**Altered by {' '.join(plan.altering)}: not judged against the paper.**"))
        parts += layout.table(self.grid(), len(self.artifact.axes))
        parts += [layout.prose(f"**{total}**")] if (total := self.total()) else []
        if self.artifact.summary:
            parts += layout.table(summaries.grid(self), 1)
        if self.artifact.claims:
            parts += ["## Claims", layout.claims(self.claims_grid())]
        return "\n\n".join([*parts, "## Notes", layout.notes(self.notes())]) + "\n"

    def grid(self, markup: tuple[str, str] = ("**", "**"), chosen: Sequence[str] | None = None) -> Grid:
        """Return one line for each point: its place, the columns beside the metrics, and the metrics (or only the
        chosen of both).
        """
        view, artifact = self.view, self.artifact
        columns = {name: spec for name, spec in artifact.columns.items() if chosen is None or name in chosen}
        metrics = {name: spec for name, spec in artifact.metrics.items() if chosen is None or name in chosen}
        headers = [axis.title for axis in artifact.axes.values()]
        headers += [column.title for column in columns.values()]
        headers += [header for metric in metrics.values() for header in self._metric_headers(metric)]
        best = {(name, source): self._best(name, source) for name in metrics for source in _SOURCES}
        rows = []
        for key, point in view.points.items():
            row = [artifact.axes[axis].values[value].label for axis, value in key]
            for name, column in columns.items():
                found, printed = column_value(view.artifact, column, point, view.judged(point)), view.printed(key, name)
                verdict = verdicts.on_column(column, printed, found, view.plan.scale.comparable)
                row.append(self._said(verdict.text, name, point) if column.is_at(key) else "")
            for name, metric in metrics.items():
                marks = {source: markup if point.key in best[name, source] else ("", "") for source in _SOURCES}
                row += self._metric_cells(name, metric, point, marks)
            rows.append(row)
        kinds = {name: self._metric_headers(metric) for name, metric in metrics.items()}
        return Grid(headers, rows + floor_lines(view, len(columns), kinds))

    def _metric_headers(self, metric: Metric) -> list[str]:
        headers = [f"{metric.title}: paper"] if self._has_printed(metric) else []
        if metric.measured:
            if self.view.has_reference:
                headers += [f"{metric.title}: reference", f"{metric.title}: yours", AS_REFERENCE]
            else:
                whose = "ours" if self.view.own_root_is_reference else "yours"
                headers.append(f"{metric.title}: {whose}" if headers else metric.title)
            if self._has_printed(metric):
                headers.append(VERDICT)
        return headers

    def _has_printed(self, metric: Metric) -> bool:
        return self.artifact.published is not None and bool(metric.published)

    def _metric_cells(self, name: str, metric: Metric, point: Point, marks: Mapping[str, tuple[str, str]]) -> list[str]:
        printed = self.view.printed(point.key, name)
        cells = [_wrap(_number(metric, printed), marks["paper"])] if self._has_printed(metric) else []
        if not metric.measured:
            return cells
        own, reference = values(point.own, name), values(point.reference, name)
        own_text = _wrap(_spread(metric, own), marks["own"]) or self.absence(point, name, "own")
        if own and any(cell.id in self.view.changed for cell in point.cells.values()):
            own_text += CHANGED
        if self.view.has_reference:
            reference_text = _wrap(_spread(metric, reference), marks["reference"])
            absence = self.absence(point, name, "reference")
            cells += [reference_text or absence, own_text, verdicts.agreement(own, reference)]
        else:
            cells.append(own_text)
        if self._has_printed(metric):
            cells.append(self._said(self.verdict(name, point).text, name, point))
        return cells

    def verdict(self, name: str, point: Point) -> verdicts.Verdict:
        """Return the verdict on a metric at a point, on the user's records or, where there are none at all, the
        reference.
        """
        plan = self.view.plan
        return verdicts.on_metric(
            self.artifact.metrics[name],
            self.view.printed(point.key, name),
            values(self.view.judged(point), name),
            self.artifact.tolerances.get(name),
            plan.scale.comparable,
            plan.altered,
            self.artifact.fitted,
        )

    def absence(self, point: Point, name: str, source: str) -> str:
        """Return what stands for a missing number, of which ``source`` is "own" or "reference"."""
        found = point.own if source == "own" else point.reference
        if any(record.status == FAILED for record in found.values()) and point.key in self._failed:
            return f"{FAILED} [{self._failed.index(point.key) + 1}]"
        known = verdicts.trouble(found) or verdicts.lack(found, name) or self.view.unnamed.get(name)
        return known or self.unknown(point, name, source)

    def _said(self, text: str, name: str, point: Point) -> str:
        return self.unknown(point, name, "judged") if text == verdicts.NOT_RUN else text

    def unknown(self, point: Point, name: str, source: str) -> str:
        """Return what stands for a number of which nothing is known.

        Args:
            source: of the number, "own", "reference", or "judged" for what follows from the records that are judged.
        """
        return verdicts.NOT_RUN

    def _best(self, name: str, source: str) -> set[Any]:
        """Return the keys of the best printed or measured values of each group of ``best_within`` that has several."""
        metric = self.artifact.metrics[name]
        if not self.artifact.best_within or metric.direction == "none":
            return set()
        sign = 1.0 if metric.direction == "lower" else -1.0
        groups: dict[Any, list[tuple[float, Any]]] = {}
        for key, point in self.view.points.items():
            value = self._value(name, metric, source, point)
            if value is not None:
                group = tuple(dict(key)[axis] for axis in self.artifact.best_within)
                # Ties as printed are all best: the paper's digits decide.
                groups.setdefault(group, []).append((sign * float(metric.text(value)), key))
        several = [members for members in groups.values() if len(members) > 1]
        return {key for members in several for value, key in members if value == min(members)[0]}

    def _value(self, name: str, metric: Metric, source: str, point: Point) -> float | None:
        if source == "paper":
            printed = self.view.printed(point.key, name)
            return None if printed is None else printed.mean
        found = values(point.own if source == "own" else point.reference, name)
        return intervals.mean(list(found.values())) / metric.factor if found else None

    def total(self) -> str:
        """Return how many of a fitted table's measured numbers lie within their tolerances; empty for other tables."""
        names = [name for name, spec in self.artifact.metrics.items() if spec.measured]
        found = [self.verdict(name, point).word for point in self.view.points.values() for name in names]
        judged = [word for word in found if word in (verdicts.FITTED, verdicts.OFF)]
        if not self.artifact.fitted or not judged:
            return ""
        rules = {verdicts.rule(self.artifact.tolerances[name]) for name in names if name in self.artifact.tolerances}
        within = f"{judged.count(verdicts.FITTED)} of {len(judged)} measured numbers lie {' or '.join(sorted(rules))}"
        return f"{within}, with settings that were fitted to them."

    def judgements(self) -> list[tuple[Any, claims.Judgement]]:
        return self._judgements

    @cached_property
    def _judgements(self) -> list[tuple[Any, claims.Judgement]]:
        return [(claim, decisions.judge(claim, self.view)) for claim in self.artifact.claims]

    def claims_grid(self) -> Grid:
        return claims_grid(self.judgements())

    def notes(self) -> list[str]:
        view, artifact = self.view, self.artifact
        notes = [
            *artifact.notes,
            *view.plan.scale.notes,
            *self.remarks(),
            *floors.remarks(view),
            *self._unfinished_looks(),
        ]
        by_rule: dict[str, list[str]] = {}
        titles = {name: spec.title for name, spec in artifact.quantities.items()}
        for name, tolerance in artifact.tolerances.items():
            by_rule.setdefault(f"{verdicts.rule(tolerance)}: {tolerance.reason}", []).append(titles[name])
        measured = {spec.title for spec in artifact.metrics.values()}
        for rule, names in by_rule.items():
            word = verdicts.FITTED if artifact.fitted and measured.issuperset(names) else verdicts.REPRODUCED
            notes.append(f"{word.capitalize()} ({', '.join(names)}) means {rule}")
        if artifact.published is not None:
            notes.append(f"Repeats in the paper: {artifact.published.repeats}.")
        for title, found in (("Yours", "own"), ("Reference", "reference")):
            if origin := _origin(
                [record for point in view.points.values() for record in getattr(point, found).values()]
            ):
                notes.append(f"{'Made' if view.own_root_is_reference else title + ', made'} {origin}.")
        for point in view.points.values():
            if text := verdicts.trouble(view.judged(point)):
                number = ""
                if point.key in self._failed:
                    number, text = f"[{self._failed.index(point.key) + 1}] ", textwrap.shorten(text, 300)
                notes.append(f"{number}{self._place(point)}: {text}.")
        if changed := changes.told(view.changed):
            notes.append(f"{CHANGED.strip()} {changed}.")
        return notes + self._lacks()

    @cached_property
    def _failed(self) -> list[Any]:
        """The places that have no result because a cell failed; a note says why."""
        points = self.view.points.values()
        statuses = {point.key: {one.status for one in self.view.judged(point).values()} for point in points}
        return [key for key, found in statuses.items() if FAILED in found and FINISHED not in found]

    def _unfinished_looks(self) -> list[str]:
        return [
            f"A look at {count} seeds was begun at {len(points)} of {len(self.view.points)} places (the first: "
            f"{self._place(points[0])}) and is not finished: its further seeds stand in no number and no verdict."
            for count, points in self.view.unfinished_looks.items()
        ]

    def _place(self, point: Point) -> str:
        return ", ".join(self.artifact.axes[axis].values[value].label for axis, value in point.key)

    def _lacks(self) -> list[str]:
        """Return why metrics are not available, each reason once."""
        reasons: dict[str, list[str]] = {}
        for point in self.view.points.values():
            for record in self.view.judged(point).values():
                for name, reason in record.unavailable.items():
                    if name in self.artifact.metrics:
                        reasons.setdefault(reason, []).append(self.artifact.metrics[name].title)
        return [f"{', '.join(dict.fromkeys(titles))}: n/a, {reason}" for reason, titles in reasons.items()]

    def _lead(self) -> str:
        plan, artifact = self.view.plan, self.artifact
        scale = "" if plan.scale_name == "exact" else f" Scale {plan.scale_name}: {plan.scale.about}"
        seeds = f" Seeds {self.view.judged_seeds}." if len(plan.seeds) > 1 else ""
        ground = f" The numbers here are made from: {made_of.words(self.view)}."
        return f"{artifact.source.paper}, {artifact.source.where}.{ground}{scale}{seeds}"

    def long_rows(self) -> list[dict[str, Any]]:
        """Return one row for each point and metric or column, with everything a program wants to compare."""
        rows = []
        for key, point in self.view.points.items():
            place = dict(key)
            for name, column in self.artifact.columns.items():
                if not column.is_at(key):
                    continue
                printed = self.view.printed(key, name)
                found = column_value(self.artifact, column, point, self.view.judged(point))
                verdict = verdicts.on_column(column, printed, found, self.view.plan.scale.comparable).word
                numbers = {"paper_mean": None if printed is None else printed.mean, "paper_std": None}
                rows.append(
                    {
                        **place,
                        "quantity": name,
                        **numbers,
                        **intervals.columns("own", [] if found is None else [found]),
                        "verdict": verdict,
                    }
                )
            for name, metric in self.artifact.metrics.items():
                printed = self.view.printed(key, name)
                numbers = {
                    "paper_mean": None if printed is None else printed.mean,
                    "paper_std": None if printed is None else printed.std,
                }
                own = [value / metric.factor for value in values(point.own, name).values()]
                reference = [value / metric.factor for value in values(point.reference, name).values()]
                verdict = self.verdict(name, point).word if metric.measured else ""
                row = {**place, "quantity": name, **numbers, **intervals.columns("own", own), "verdict": verdict}
                if not self.view.own_root_is_reference:
                    row |= intervals.columns("reference", reference)
                    row["as_reference"] = verdicts.agreement(values(point.own, name), values(point.reference, name))
                rows.append(row)
        return rows + floor_document(self.view)

    def document(self) -> dict[str, Any]:
        """Return the content of table.json."""
        plan = self.view.plan
        return {
            "artifact": self.artifact.id,
            "title": self.artifact.title,
            "source": f"{self.artifact.source.paper}, {self.artifact.source.where}",
            "scale": plan.scale_name,
            "made_of": made_of.words(self.view),
            "comparable": plan.scale.comparable and not plan.altered,
            "seeds": list(plan.seeds),
            "looks": list(plan.scale.looks),
            "overrides": plan.altering,
            "rows": self.long_rows(),
            "summary": summaries.document(self),
            "total": self.total(),
            "claims": [claim_document(claim, judgement) for claim, judgement in self.judgements()],
            "notes": self.notes(),
            "cells": self._cells(),
        }

    def _cells(self) -> dict[str, Any]:
        """Return the ids of the judged records; a record's own id does not depend on the data that a reader has."""
        found = {}
        for point in self.view.points.values():
            for seed, cell in point.cells.items():
                record = self.view.judged(point).get(seed)
                found[cell.id if record is None else record.cell] = {**dict(point.key), "seed": seed}
        return found | floor_cells(self.view)

    def csv(self) -> str:
        rows = self.long_rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        stream = io.StringIO()
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()

    def latex(self) -> str:
        comment = f"{self.artifact.id}, scale {self.view.scale_name}"
        return latex_table(self.grid(markup=BOLD), comment)


_SOURCES = ("paper", "own", "reference")
CHANGED = " †"
"""What stands behind a number of the user's that comes from other code or data than there is now."""


def _number(metric: Metric, number: Number | None) -> str:
    if number is None:
        return ""
    if number.std is None and metric.format == "f":
        return f"{number.mean:.10g}"  # as many digits as the paper prints
    if number.std is None:
        return metric.text(number.mean)
    return f"{metric.text(number.mean)} ± {metric.text(number.std)}"


def _spread(metric: Metric, found: Mapping[int, float]) -> str:
    if not found:
        return ""
    scaled = [value / metric.factor for value in found.values()]
    spread = intervals.sample_std(scaled)
    text = metric.text(intervals.rounded(intervals.mean(scaled)))
    return text if spread is None else f"{text} ± {metric.text(intervals.rounded(spread))}"


def _wrap(text: str, marks: tuple[str, str]) -> str:
    return f"{marks[0]}{text}{marks[1]}" if text else ""


NO_COMMIT = "unknown (no git there)"


def _origin(found: Sequence[Record]) -> str:
    """Return device and commit of a set of records, in words; empty for none."""
    if not found:
        return ""
    devices = sorted({str(record.provenance.get("device")) for record in found})
    torches = sorted({str(record.provenance.get("versions", {}).get("torch", "none")) for record in found})
    code = [each for record in found for each in measurements.code_of(record)]
    commits = sorted({(each["commit"] or "")[:10] or NO_COMMIT for each in code})
    dirty = " with uncommitted changes" if any(each["dirty"] for each in code) else ""
    return f"on {'; '.join(devices)}, torch {', '.join(torches)}, commit {', '.join(commits)}{dirty}"
