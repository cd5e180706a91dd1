"""Predicates answer only for models that are better than their floors (``paper_repro.artifacts.floors``)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from paper_repro.artifacts.views import View

NOT_JUDGED = "not judged: below the floor"
"""Said of what was judged on a model that is not better than its floor."""
Judge = TypeVar("Judge", bound=Callable[..., Any])


def guarded(view: "View", judge: Callable[[Any], Any]) -> Any:
    """Judge a part by itself: where it reads of a model that is not better than its floor, or that lost some of its
    seeds, its answer is not taken; the second but where it is exact.

    What the part reads is not held against the rest of its predicate.

    Args:
        view: what is judged from.
        judge: takes the view that notes what is read, and returns a ``claims.Judgement``.
    """
    witness = view.witness()
    found, reason = judge(witness), witness.shortfall()
    if reason is None:
        reason = None if found.is_exact else witness.lost_seeds()
    if reason is None:
        return found
    if reason.verdict == found.verdict and reason.is_open >= found.is_open:  # undecided is so for its own reason
        return found
    return dataclasses.replace(reason, because=f"{reason.because} ({found.because})")


def above_the_floor(judge: Judge) -> Judge:
    """Guard the method ``judge`` of a predicate."""

    @functools.wraps(judge)
    def judged(predicate: Any, view: "View", place: Any) -> Any:
        return guarded(view, lambda witness: judge(predicate, witness, place))

    return cast(Judge, judged)
