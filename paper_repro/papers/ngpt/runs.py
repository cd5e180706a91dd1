"""Finished runs of a view and their tokens, for figures 1, 2, 3 and 7."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from paper_repro.metrics.speedup import FinishedRun
from paper_repro.tables import claims, stats
from paper_repro.tables.claims import Place
from paper_repro.tables.view import View

LOSS = "val_loss"
"""Chooses the rate, and judges a model where its data have no test split."""
TEST_LOSS = "test_loss"


@dataclass(frozen=True)
class Run:
    """One finished run and its place."""

    place: Place
    tokens: float
    rate: float
    seed: int
    loss: float
    """By which the rate is chosen, of validation."""
    judged: float
    """By which the model is judged: of test where there is one."""
    seconds: float
    """Seconds of training, beside other work on the machine."""

    @property
    def finished(self) -> FinishedRun:
        return FinishedRun(self.tokens, self.judged, self.rate, self.seed)


def tokens_per_step(view: View, place: Place) -> float:
    """Multiply the windows of a step by their tokens."""
    return math.prod(view.counted(name, place) or 0.0 for name in ("window", "windows", "batches"))


def judged_by(view: View) -> str:
    """Return the metric by which models are judged."""
    return TEST_LOSS if TEST_LOSS in view.artifact.metrics else LOSS


def runs(view: View, **fixed: str) -> Iterator[Run]:
    """Yield the finished runs at the places of the scale with those axis values.

    A rate at which a seed diverged is no candidate, and is left out.
    """
    for place in view.places(**fixed):
        if view.lost(LOSS, place):
            continue
        records, judged = view.judged(view.point(place)), view.samples(judged_by(view), place)
        losses = view.samples(LOSS, place)
        for seed in sorted(losses.keys() & judged.keys()):
            tokens = tokens_per_step(view, place) * (view.counted("steps", place) or 0)
            rate, seconds = float(place["lr"]), records[seed].seconds or 0.0
            yield Run(place, tokens, rate, seed, losses[seed], judged[seed], seconds)


def best_runs(view: View, **fixed: str) -> list[Run]:
    """Return, for each size, context, model and budget, the runs at the rate with the lowest mean loss over seeds."""
    groups: dict[tuple[str, ...], dict[float, list[Run]]] = {}
    for run in runs(view.unwatched(), **fixed):
        place = tuple(value for axis, value in run.place.items() if axis != "lr")
        groups.setdefault(place, {}).setdefault(run.rate, []).append(run)
    best = (min(rates.values(), key=lambda own: stats.mean([run.loss for run in own])) for rates in groups.values())
    return [run for own in best for run in own]


def loss_difference(view: View, of: Place, to: Place) -> claims.Estimate:
    """Return the loss of a model less that of another, in nats, each at its best rate.

    The interval carries the error of the test sample where records hold the losses of its items.
    """
    best = [best_runs(view, **place) for place in (of, to)]
    if not all(best):
        return claims.nothing("not run")
    places = best[0][0].place, best[1][0].place
    sides = [(f"final loss of {view.label('model', place['model'])}", judged_by(view)) for place in places]
    return claims.at_places(view, claims.DIFFERENCE, sides[0], sides[1], {"": places})


def named(view: View, model: str, size: str) -> str:
    """Return the label of a model, with its size where the scale has several."""
    label = view.label("model", model)
    return f"{label}, {view.label('size', size)}" if len(view.chosen("size")) > 1 else label


def context_of(view: View, context: str) -> str:
    """Return the window that the scale runs for one of the paper's contexts: "64 tokens (the paper's 1k)"."""
    label = view.label("context", context)
    windows = {view.counted("window", place) for place in view.places(context=context)}
    found = sorted(window for window in windows if window)
    return f"{' and '.join(f'{window:,.0f}' for window in found)} tokens (the paper's {label})" if found else label
