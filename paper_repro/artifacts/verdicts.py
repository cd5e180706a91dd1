"""How a number of ours stands to the paper's, and the user's to the committed reference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paper_repro.artifacts import intervals
from paper_repro.artifacts.artifact import Column, Metric, Number, Tolerance
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import FINISHED

REPRODUCED, OFF, REDUCED, ALTERED, NOT_RUN = "reproduced", "off by", "reduced scale", "altered", "not run"
FITTED = "fitted"
"""Said in the place of ``reproduced`` where settings, or the way to compute, were fitted to the printed numbers."""


@dataclass(frozen=True)
class Verdict:
    """A word that a program can compare, and the text that a table prints."""

    word: str
    text: str


def on_metric(
    metric: Metric,
    printed: Number | None,
    found: Mapping[int, float],
    tolerance: Tolerance | None,
    comparable: bool,
    altered: bool,
    fitted: bool = False,
) -> Verdict:
    """Return the verdict on a metric's mean over seeds.

    ``reproduced`` (of a fitted table ``fitted``) and ``off by`` are said only of runs at the paper's scale with the
    artifact's own settings.  ``reduced scale`` has no percentage, which would read as if it were judged.
    """
    if not found:
        return Verdict(NOT_RUN, NOT_RUN)
    if printed is None or tolerance is None:
        return Verdict("", "")
    ours = intervals.mean(list(found.values())) / metric.factor
    change = _relative(ours, printed.mean)
    if altered:
        return Verdict(ALTERED, f"{ALTERED} ({change})")
    if not comparable:
        return Verdict(REDUCED, REDUCED)
    if within(ours, printed, tolerance, metric.text):
        word = FITTED if fitted else REPRODUCED
        return Verdict(word, f"{word} ({change})")
    return Verdict(OFF, f"{OFF} {change}")


def on_column(column: Column, printed: Number | None, found: float | None, comparable: bool = True) -> Verdict:
    """Return the verdict on a counted column: at the paper's scale it must agree with the printed digits, if there are
    any.
    """
    if found is None:
        return Verdict(NOT_RUN, NOT_RUN)
    if printed is None:
        return Verdict("", column.text(found))
    wanted = f"{printed.mean:.{column.digits}f}{column.unit}"
    if not comparable:
        return Verdict(REDUCED, f"{wanted}, {REDUCED}: {found:,.0f}")
    if column.text(found) == wanted:
        return Verdict(REPRODUCED, f"{wanted} = {found:,.0f}")
    return Verdict(OFF, f"{wanted}, ours {found:,.0f}")


def within(ours: float, printed: Number, tolerance: Tolerance, text: "object") -> bool:
    """Return whether ``ours`` lies within the tolerance of the printed number.

    Raises:
        ValueError: the tolerance counts published standard deviations and the paper prints none.
    """
    distance = abs(ours - printed.mean)
    if tolerance.published_stds is not None:
        if printed.std is None:
            raise ValueError("a tolerance in published standard deviations needs a published one")
        return distance <= tolerance.published_stds * printed.std
    if tolerance.relative is not None:
        return distance <= tolerance.relative * abs(printed.mean)
    if tolerance.absolute is not None:
        return distance <= tolerance.absolute
    assert callable(text)
    return bool(text(ours) == text(printed.mean))


def rule(tolerance: Tolerance) -> str:
    """Return a tolerance in words."""
    if tolerance.published_stds is not None:
        return f"within {tolerance.published_stds:g} published standard deviation of the published mean"
    if tolerance.relative is not None:
        return f"within {100 * tolerance.relative:g} %"
    if tolerance.absolute is not None:
        return f"within {tolerance.absolute:g}"
    return "equal to the printed digits"


def trouble(found: Mapping[int, Record]) -> str:
    """Return what happened to the cells that have no result, in words; empty if all finished."""
    parts = []
    for seed, record in sorted(found.items()):
        if record.status != FINISHED:
            parts.append(f"seed {seed} {record.status}" + (f": {record.note}" if record.note else ""))
    return "; ".join(parts)


def lack(found: Mapping[int, Record], name: str) -> str:
    """Return what a metric lacks, "n/a: needs gpt2", as far as its reason's first colon; empty if it lacks nothing."""
    reasons = [record.unavailable[name] for record in found.values() if name in record.unavailable]
    return f"n/a: {reasons[0].partition(':')[0]}" if reasons else ""


def agreement(own: Mapping[int, float], reference: Mapping[int, float]) -> str:
    """Return whether the user's runs agree with the reference within seed noise.

    ``agrees`` if Welch's 95 % interval of the difference of means holds zero, ``differs`` otherwise.  Seeds are treated
    as independent: on another processor the same seed is a new sample once training has amplified the rounding.
    """
    if not own or not reference:
        return ""
    if own == reference:
        return "equal"
    if len(own) < 2 or len(reference) < 2:
        return "one seed"
    interval = intervals.welch(list(own.values()), list(reference.values()))
    return "agrees" if interval.low <= 0.0 <= interval.high else "differs"


def _relative(ours: float, printed: float) -> str:
    if printed == 0.0:
        return f"{ours:+.3g}"
    percent = 100.0 * (ours - printed) / abs(printed)
    if not math.isfinite(percent):
        return f"{ours:.3g}"
    return f"{percent:+.0f} %" if abs(percent) >= 1 else f"{percent:+.2g} %"
