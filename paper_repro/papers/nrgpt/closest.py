"""Estimates of orders: a model is best of all, or models follow one another, if the closest pair says so."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from paper_repro.tables import claims
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View


def ahead_of_best(view: View, metric: str, own: str, others: Sequence[str]) -> claims.Estimate:
    """Return the metric of a model minus that of the best other one, or their ratio where lower is better."""
    found = {model: view.samples(metric, {"model": model}) for model in (own, *others)}
    if lacking := [model for model, samples in found.items() if not samples]:
        return claims.nothing(view.absence(metric, {"model": lacking[0]}))
    spec = view.artifact.metrics[metric]
    if spec.direction == "lower":
        return max((_pair(claims.ratio, view, spec.title, found, own, other) for other in others), key=_mean)
    return closest(_pair(claims.difference, view, spec.title, found, own, other) for other in others)


def closest(steps: Iterable[claims.Estimate]) -> claims.Estimate:
    """Return the least of the ratios of each model's numbers to those of the model before it, in the order of a claim;
    one without an interval counts as least.
    """
    return min(steps, key=_mean)


def _pair(
    compare: Callable[..., claims.Estimate], view: View, what: str, found: Mapping[str, Samples], own: str, other: str
) -> claims.Estimate:
    sides = found[own], found[other]
    return compare(f"{what} of {view.label('model', own)}", view.label("model", other), {"": sides})


def _mean(estimate: claims.Estimate) -> float:
    return -math.inf if estimate.interval is None else estimate.interval.mean
