"""What figures 1, 2, 3 and 7 share: finished runs of a view and their tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from paper_repro.artifacts.claims import Place
from paper_repro.artifacts.views import View
from paper_repro.metrics.speedup import FinishedRun

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
    """Seconds of training on the machine that ran it, other work beside it included."""
    parameters: float

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
            rate, parameters = view.counted("lr", place) or 0.0, view.counted("parameters", place) or 0.0
            yield Run(place, tokens, rate, seed, loss, records[seed].seconds or 0.0, parameters)


def note_best(view: View, tokens: float | None = None, **fixed: str) -> None:
    """Read the best rate of every size, context, model and budget there, or of the runs of so many tokens: it is
    judged, and the other rates of a sweep are only looked at to find it.
    """
    rates: dict[tuple[str, ...], dict[str, tuple[Place, list[float]]]] = {}
    for run in runs(view.unwatched(), **fixed):
        if tokens not in (None, run.tokens):
            continue
        place = tuple(value for axis, value in run.place.items() if axis != "lr")
        rates.setdefault(place, {}).setdefault(run.place["lr"], (run.place, []))[1].append(run.loss)
    for found in rates.values():
        best, _ = min(found.values(), key=lambda one: sum(one[1]) / len(one[1]))
        view.samples(LOSS, best)


def chosen(view: View, axis: str) -> list[str]:
    """Return the values of an axis that the scale runs, in the artifact's order."""
    found = {dict(key)[axis] for key in view.points}
    return [value for value in view.artifact.axes[axis].values if value in found]


def context_of(view: View, context: str) -> str:
    """Return the window that the scale runs for one of the paper's contexts: "64 tokens (the paper's 1k)"."""
    label = view.artifact.axes["context"].values[context].label
    windows = {view.counted("window", dict(key)) for key in view.points if dict(key)["context"] == context}
    found = sorted(window for window in windows if window)
    return f"{' and '.join(f'{window:,.0f}' for window in found)} tokens (the paper's {label})" if found else label
