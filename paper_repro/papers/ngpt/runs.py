"""Finished runs of a view and their tokens, for figures 1, 2, 3 and 7."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from paper_repro.metrics.speedup import FinishedRun
from paper_repro.tables import stats
from paper_repro.tables.claims import Place
from paper_repro.tables.figure import BaselineLine, baseline_lines
from paper_repro.tables.view import View

LOSS = "val_loss"
MARKS = "Faint dots: seeds; marks and lines: means over seeds."


@dataclass(frozen=True)
class Run:
    """One finished run and its place."""

    place: Place
    tokens: float
    rate: float
    seed: int
    loss: float
    seconds: float
    """Seconds of training, beside other work on the machine."""

    @property
    def finished(self) -> FinishedRun:
        return FinishedRun(self.tokens, self.loss, self.rate, self.seed)


def tokens_per_step(view: View, place: Place) -> float:
    """Multiply the windows of a step by their tokens."""
    counts = [view.counted(name, place) for name in ("window", "windows", "batches")]
    return float((counts[0] or 0) * (counts[1] or 0) * (counts[2] or 0))


def runs(view: View, **fixed: str) -> Iterator[Run]:
    """Yield the finished runs at the places of the scale with those axis values.

    A rate at which a seed diverged is no candidate, and is left out.
    """
    for key, point in view.points.items():
        place = dict(key)
        if not fixed.items() <= place.items() or view.lost(LOSS, place):
            continue
        records = view.judged(point)
        for seed, loss in sorted(view.samples(LOSS, place).items()):
            tokens = tokens_per_step(view, place) * (view.counted("steps", place) or 0)
            yield Run(place, tokens, view.counted("lr", place) or 0.0, seed, loss, records[seed].seconds or 0.0)


def best_runs(view: View, **fixed: str) -> list[Run]:
    """Return, for each size, context, model and budget, the runs at the rate with the lowest mean loss over seeds."""
    groups: dict[tuple[str, ...], dict[float, list[Run]]] = {}
    for run in runs(view.unwatched(), **fixed):
        place = tuple(value for axis, value in run.place.items() if axis != "lr")
        groups.setdefault(place, {}).setdefault(run.rate, []).append(run)
    best = (min(rates.values(), key=lambda own: stats.mean([run.loss for run in own])) for rates in groups.values())
    return [run for own in best for run in own]


def chosen(view: View, axis: str) -> list[str]:
    """Return the values of an axis that the scale runs, in the artifact's order."""
    found = {dict(key)[axis] for key in view.points}
    return [value for value in view.artifact.axes[axis].values if value in found]


def named(view: View, model: str, size: str) -> str:
    """Return the label of a model, with its size where the scale has several."""
    label, axes = view.artifact.axes["model"].values[model].label, view.artifact.axes
    return f"{label}, {axes['size'].values[size].label}" if len(chosen(view, "size")) > 1 else label


def baselines_of(view: View, places: Iterable[tuple[str, str]]) -> list[BaselineLine]:
    """Return the baselines of panels by context and metric: windows of another length are other data."""
    each = (baseline_lines(view, metric, {"context": context}, i) for i, (context, metric) in enumerate(places))
    return list(itertools.chain.from_iterable(each))


def context_of(view: View, context: str) -> str:
    """Return the window that the scale runs for one of the paper's contexts: "64 tokens (the paper's 1k)"."""
    label = view.artifact.axes["context"].values[context].label
    windows = {view.counted("window", dict(key)) for key in view.points if dict(key)["context"] == context}
    found = sorted(window for window in windows if window)
    return f"{' and '.join(f'{window:,.0f}' for window in found)} tokens (the paper's {label})" if found else label
