"""Estimates of orders: a model is best of all, or models follow one another, if the closest pair says so."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from paper_repro.tables import claims
from paper_repro.tables.stats import Samples
from paper_repro.tables.view import View


def ahead_of_best(view: View, metric: str, own: str, others: Sequence[str]) -> claims.Estimate:
    """Return the metric of a model minus that of the best other one, or their ratio where lower is better."""
    found = {model: view.samples(metric, {"model": model}) for model in (own, *others)}
    if lacking := [model for model, samples in found.items() if not samples]:
        return claims.nothing(view.absence(metric, {"model": lacking[0]}))
    title = view.artifact.metrics[metric].title
    if view.artifact.metrics[metric].direction == "lower":
        return max((ratio(view, title, own, other, found[own], found[other]) for other in others), key=_mean)
    each = [
        claims.difference(
            f"{title} of {view.label('model', own)}", view.label("model", other), {"": (found[own], found[other])}
        )
        for other in others
    ]
    return min(each, key=_mean)


def closest_step(view: View, what: str, found: Mapping[str, Samples]) -> claims.Estimate:
    """Return the least ratio of a model's numbers to those of the model before it, in the order of a claim."""
    each = [ratio(view, what, own, before, found[own], found[before]) for before, own in pairwise(found)]
    return min(each, key=_mean)


def ratio(view: View, what: str, own: str, other: str, left: Samples, right: Samples) -> claims.Estimate:
    """Return the ratio of one model's numbers to another's."""
    return claims.ratio(f"{what} of {view.label('model', own)}", view.label("model", other), {"": (left, right)})


def _mean(estimate: claims.Estimate) -> float:
    return -math.inf if estimate.interval is None else estimate.interval.mean
