"""EBT, Table D.5: what a step costs over a Transformer++'s, held against the printed ratios."""

import math

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.views import View

RATIOS = {"time": "ratio_own", "memory": "memory_ratio_own", "first": "first_ratio_own"}
MODELS = ("one_step", "two_steps")
PAIRS = {"one_step": "two_steps", "one_step_split": "two_steps_split"}
WITHIN = 0.2
"""Relative; the tolerance of the summary."""


class TableD5(tables.Table):
    def summary(self) -> dict[str, float]:
        found = {}
        for kind, metric in RATIOS.items():
            for model in MODELS:
                if samples := self.view.samples(metric, {"model": model}):
                    found[f"{kind}_{model}"] = intervals.mean(list(samples.values()))
        return found


def judge_step_cost(view: View) -> Judgement:
    """Judge the interval of each ratio against the printed one, a fifth to either side."""
    parts = []
    for kind, metric in RATIOS.items():
        for model in MODELS:
            item = view.artifact.summary[f"{kind}_{model}"]
            assert item.published is not None
            samples = view.samples(metric, {"model": model})
            parts.append((item.title, _about(samples, item.published)))
    return combine(parts, FAILS, HOLDS)


def judge_second_step_costs_as_the_first(view: View) -> Judgement:
    """Judge the ratio of the times with two steps and with one, concatenated and split."""
    parts = []
    for one, two in PAIRS.items():
        first, second = (view.samples(RATIOS["time"], {"model": model}) for model in (one, two))
        samples = {seed: second[seed] / first[seed] for seed in first if seed in second}
        parts.append((view.artifact.axes["model"].values[two].label, _about(samples, 2.0)))
    return combine(parts, FAILS, HOLDS)


def _about(samples: dict[int, float], wanted: float) -> Judgement:
    """Judge whether the 95 % interval of the mean ratio lies within a fifth of ``wanted``, or outside of it."""
    if len(samples) < 2:
        return Judgement(UNDECIDED, "one seed: not judged" if samples else "not run")
    logs = {seed: math.log(ratio) for seed, ratio in samples.items()}
    interval = intervals.compare(logs, dict.fromkeys(logs, 0.0))
    low, mean, high = (math.exp(value) for value in (interval.low, interval.mean, interval.high))
    least, most = wanted / (1 + WITHIN), wanted * (1 + WITHIN)
    text = f"{mean:.2f} [{low:.2f}, {high:.2f}] times, wanted {least:.2f} to {most:.2f}"
    return tested(interval, text, math.log(least), math.log(most), relative=True)
