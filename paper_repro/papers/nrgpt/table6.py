"""NRGPT, Table 6: what the number of questions allows to be said about averages over MMLU's columns.

At scales smoke and cpu docstring continuations, which are ours, stand in MMLU's place; the printed columns are judged
all the same.
"""

import math
from collections.abc import Mapping
from typing import Any

from paper_repro.artifacts import intervals, tables
from paper_repro.artifacts.claims import FAILS, HOLDS, UNDECIDED, Judgement, combine, tested
from paper_repro.artifacts.views import View
from paper_repro.base import config as configs
from paper_repro.cells.planned import Key

GENERATED, LIKELIHOOD, ALWAYS_A = "mmlu_generated", "mmlu", "mmlu_always_a"
CHANCE = 25.0
NORMAL_QUANTILE = 1.959964
"""Quantile of a two-sided 95 % interval."""
PROBES = "probes=nrgpt/mmlu"
OURS, OTHERS = "ff2w", ("rgpt_parallel", "gpt")


class Table6(tables.Table):
    def summary(self) -> dict[str, float]:
        found = {f"printed_{model}": _mean(_printed(self.view, model)) for model in (OURS, *OTHERS)}
        return found | {"chance": CHANCE, "chance_half_width": _chance_half_width(_columns(self.view))}

    def remarks(self) -> list[str]:
        columns = _columns(self.view)
        half, always = _chance_half_width(columns), self._always_a()
        if f"{GENERATED}_average" not in self.artifact.metrics:
            return [f"Chance and the averages above are of MMLU: 95 % of guessing ones lie within {half:.1f} points."]
        titles = {name: self.artifact.metrics[f"{GENERATED}_{name}"].title for name in columns}
        widths = [f"{titles[name]} {_chance_half_width({name: own}):.1f}" for name, own in columns.items()]
        silent = (
            "" if always is None else f" Always saying A gives {always:.1f} %, which the authors' scoring leans to."
        )
        within = [
            f"{self.artifact.axes['model'].values[model].label}: {name}, {value:.1f} %"
            for model in (OURS, *OTHERS)
            for name, value in _averages(self.view, model).items()
            if abs(value - CHANCE) <= half
        ]
        return [
            f"Chance is {CHANCE:g} %: by the number of questions, 95 % of the averages of a guessing model lie within "
            f"{half:.1f} points of it (of single columns: {', '.join(widths)} points).{silent}",
            f"Averages that guessing explains: {'; '.join(within) or 'none'}.",
        ]

    def _always_a(self) -> float | None:
        found = self.view.samples(f"{ALWAYS_A}_average", {"model": OURS})
        return intervals.mean(list(found.values())) if found else None


def judge_beyond_the_questions(view: View) -> Judgement:
    """Judge the mean over seeds in the authors' scoring, because the questions are the same for every seed."""
    return _beyond(view, {model: _measured(view, model, GENERATED) for model in (OURS, *OTHERS)})


def judge_beyond_the_questions_by_log_likelihood(view: View) -> Judgement:
    return _beyond(view, {model: _measured(view, model, LIKELIHOOD) for model in (OURS, *OTHERS)})


def judge_printed_beyond_the_questions(view: View) -> Judgement:
    """Return the same of the paper's own columns."""
    return _beyond(view, {model: _printed(view, model) for model in (OURS, *OTHERS)})


def _beyond(view: View, columns: Mapping[str, dict[str, float]]) -> Judgement:
    """Return whether the average of ours is above each other's by more than a 95 % binomial interval of the difference.

    The models answer the same questions; their covariance is not known and is taken as zero, which is cautious where
    they tend to be right on the same ones.
    """
    parts = []
    for other in OTHERS:
        label = view.artifact.axes["model"].values[other].label
        if not columns[OURS] or not columns[other]:
            parts.append((f"above {label}", Judgement(UNDECIDED, "not run")))
            continue
        difference = _mean(columns[OURS]) - _mean(columns[other])
        errors = [standard_error(_columns(view), columns[model]) for model in (OURS, other)]
        questions = sum(sum(subjects.values()) for subjects in _columns(view).values())
        interval = intervals.student(difference, math.hypot(*errors), math.inf, questions)
        text = f"{difference:+.1f} points [{interval.low:+.1f}, {interval.high:+.1f}] by the noise of the questions"
        parts.append((f"above {label}", tested(interval, text, 0.0, seeds=0)))
    return combine(parts, FAILS, HOLDS)


def standard_error(columns: Mapping[str, Mapping[str, int]], accuracies: Mapping[str, float]) -> float:
    """Return the standard error of the mean over columns of means over subjects, in percentage points, from accuracies
    (%) by column.

    ``sqrt( sum_columns p (1 - p) sum_subjects 1 / n_subject / (S_column C)^2 )``: C columns of S subjects, n questions.
    """
    parts = []
    for name, subjects in columns.items():
        share = accuracies[name] / 100
        inverse = math.fsum(1 / size for size in subjects.values())
        parts.append(share * (1 - share) * inverse / (len(subjects) * len(columns)) ** 2)
    return 100 * math.sqrt(math.fsum(parts))


def _chance_half_width(columns: Mapping[str, Mapping[str, int]]) -> float:
    return NORMAL_QUANTILE * standard_error(columns, dict.fromkeys(columns, CHANCE))


def _columns(view: View) -> dict[str, dict[str, int]]:
    """Return each of MMLU's columns' subjects with their number of questions, from the cells' config or, at scales
    that do not ask them, from that of the probe.
    """
    config: dict[str, Any] = view.plan.cells[0].config
    if "mmlu" not in config["probes"]:
        config = configs.compose(view.artifact.experiment, [PROBES])
    columns: dict[str, dict[str, int]] = config["probes"]["mmlu"]["columns"]
    return columns


def _measured(view: View, model: str, prefix: str) -> dict[str, float]:
    """Return accuracies by column, means over seeds; empty if there are none."""
    found = {name: view.samples(f"{prefix}_{name}", {"model": model}) for name in _columns(view)}
    if not all(found.values()):
        return {}
    return {name: intervals.mean(list(values.values())) for name, values in found.items()}


def _printed(view: View, model: str) -> dict[str, float]:
    key: Key = (("model", model),)
    numbers = {name: view.printed(key, f"{GENERATED}_{name}") for name in _columns(view)}
    return {name: number.mean for name, number in numbers.items() if number is not None}


def _averages(view: View, model: str) -> dict[str, float]:
    measured = {"measured": _measured(view, model, GENERATED), "log-likelihood": _measured(view, model, LIKELIHOOD)}
    return {name: _mean(columns) for name, columns in {"printed": _printed(view, model), **measured}.items() if columns}


def _mean(columns: Mapping[str, float]) -> float:
    return math.fsum(columns.values()) / len(columns)
