"""EBT against a Transformer++ that trains longer, until both have cost the same: a question of ours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paper_repro.artifacts import intervals
from paper_repro.artifacts.claims import UNDECIDED, Judgement, tested
from paper_repro.artifacts.guards import guarded
from paper_repro.artifacts.intervals import Interval
from paper_repro.artifacts.views import View
from paper_repro.papers.ebt.learning import (
    NOT_RUN,
    S1,
    TRANSFORMER,
    above_zero,
    losses,
    over_seeds,
    runs,
)

BASE = {"size": "one", "width": "one"}


@dataclass(frozen=True)
class EqualCost:
    """How EBT's loss stands to that of a Transformer++ that trained ``factor`` times as long."""

    factor: float
    ratios: Mapping[int, float]
    """EBT's loss over Transformer++'s, by seed."""

    @property
    def mean(self) -> float:
        return math.exp(intervals.mean([math.log(ratio) for ratio in self.ratios.values()]))

    @property
    def interval(self) -> Interval:
        """The interval of the logarithm, over seeds."""
        logarithms = {seed: math.log(ratio) for seed, ratio in self.ratios.items()}
        return intervals.compare(logarithms, dict.fromkeys(self.ratios, 0.0))

    def __str__(self) -> str:
        found = self.interval
        interval = f"[{math.exp(found.low):.3f}, {math.exp(found.high):.3f}]" if found.count > 1 else "(one seed)"
        return f"{self.mean:.3f} {interval} at {self.factor:.3g} times the steps"


def flops_ratio(view: View, by_rule: bool = False) -> float | None:
    """Return EBT's FLOPs of a step over Transformer++'s at the base size, counted or by the paper's rule."""
    found = []
    for model in (S1, TRANSFORMER):
        costs = [run.rule_flops if by_rule else run.flops for run in runs(view, model=model, budget="one", **BASE)]
        if not costs or not costs[0]:
            return None
        found.append(costs[0])
    return found[0] / found[1]


def time_ratio(view: View) -> float | None:
    """Return the seconds of EBT's step over those of Transformer++'s at the base size, the mean over repetitions; None
    where they were not measured.
    """
    found = view.samples("ratio_own", {"model": "times", "budget": "one", **BASE})
    return intervals.mean(list(found.values())) if found else None


def factors(view: View) -> dict[str, float]:
    """Return how many times as long a Transformer++ trains at equal tokens, time and FLOPs, in words; what is not known
    is left out.
    """
    known = {
        "equal tokens": 1.0,
        "equal time": time_ratio(view),
        "equal FLOPs, counted": flops_ratio(view),
        "equal FLOPs, the paper's rule": flops_ratio(view, by_rule=True),
    }
    return {name: factor for name, factor in known.items() if factor is not None}


def equal_cost(view: View, factor: float) -> EqualCost | None:
    """Compare losses at the base size, seed by seed; None where no Transformer++ trained that long.

    Its log loss is interpolated linearly over log steps.
    """
    candidates = {run.seed: run for run in runs(view, model=S1, budget="one", **BASE)}
    ratios = {}
    for seed, candidate in candidates.items():
        points = sorted((run.steps, run.loss) for run in runs(view, model=TRANSFORMER, **BASE) if run.seed == seed)
        wanted = math.log(factor * candidate.steps)
        steps = [math.log(steps) for steps, _ in points]
        if steps and steps[0] <= wanted + _ROUNDING and wanted <= steps[-1] + _ROUNDING:
            baseline = float(np.interp(wanted, steps, [math.log(loss) for _, loss in points]))
            ratios[seed] = candidate.loss / math.exp(baseline)
    return EqualCost(factor, ratios) if ratios else None


_ROUNDING = 1e-9


def better(view: View, factor: float | None) -> Judgement:
    """Judge whether EBT's loss is below that of a Transformer++ that trained ``factor`` times as long."""
    found = [*runs(view, model=S1, budget="one", **BASE), *runs(view, model=TRANSFORMER, budget="one", **BASE)]
    if len({run.place["model"] for run in found}) < 2:
        return NOT_RUN
    if factor is None:
        return Judgement(UNDECIDED, "the cost of a step was not measured")
    compared = equal_cost(view, factor)
    if compared is None:
        return Judgement(UNDECIDED, f"no Transformer++ trained {factor:.3g} times as long")
    text = f"EBT's loss over Transformer++'s {compared}"
    if compared.interval.count < 2:
        return Judgement(UNDECIDED, f"{text}: one seed, not judged")
    return tested(compared.interval, text, high=0.0, relative=True)


def above_at(view: View, place: Mapping[str, str]) -> Judgement:
    """Judge whether EBT's loss (S1) is above Transformer++'s at a place, over seeds."""

    def judge(view: View) -> Judgement:
        candidate, baseline = (list(runs(view, model=model, **place)) for model in (S1, TRANSFORMER))
        if not candidate or not baseline:
            return NOT_RUN
        return above_zero(*over_seeds(losses(candidate), losses(baseline)))

    return guarded(view, judge)
