"""NRGPT, Table 6: chance, and how far from it the number of MMLU's questions lets guessing averages lie."""

import math
from collections.abc import Mapping
from typing import Any

from paper_repro.base import config as configs
from paper_repro.papers.nrgpt.closest import label
from paper_repro.tables import stats, table
from paper_repro.tables.view import View

GENERATED, LIKELIHOOD, ALWAYS_A = "mmlu_generated", "mmlu", "mmlu_always_a"
CHANCE = 25.0
NORMAL_QUANTILE = 1.959964
"""Quantile of a two-sided 95 % interval."""
PROBES = "probes=nrgpt/mmlu"
MODELS = ("ff2w", "rgpt_parallel", "gpt")
Subjects = Mapping[str, Mapping[str, int]]
"""The number of questions by column and subject."""


class Table6(table.Table):
    def summary(self) -> dict[str, float]:
        columns = _columns(self.view)
        found = {f"printed_{model}": stats.mean(self._printed(model, columns)) for model in MODELS}
        return found | {"chance": CHANCE, "chance_half_width": chance_half_width(columns)}

    def remarks(self) -> list[str]:
        """Return which averages guessing explains, where MMLU is asked."""
        columns = _columns(self.view)
        half = chance_half_width(columns)
        if f"{GENERATED}_average" not in self.artifact.metrics:
            return [f"Chance and the averages above are of MMLU: 95 % of guessing ones lie within {half:.1f} points."]
        found = {}
        for model in MODELS:
            found[f"{label(self.view, model)}, printed"] = self._printed(model, columns)
            for name, prefix in (("measured", GENERATED), ("log-likelihood", LIKELIHOOD)):
                each = [self.view.samples(f"{prefix}_{column}", {"model": model}) for column in columns]
                if all(each):
                    found[f"{label(self.view, model)}, {name}"] = [stats.mean(list(own.values())) for own in each]
        averages = {name: stats.mean(values) for name, values in found.items()}
        guessing = [f"{name} {value:.1f} %" for name, value in averages.items() if abs(value - CHANCE) <= half]
        return [
            f"Of a guessing model 95 % of the averages lie within {half:.1f} points of {CHANCE:g} %, by the number of "
            f"questions. Averages that guessing explains: {'; '.join(guessing) or 'none'}.",
            *self._always_a(),
        ]

    def _printed(self, model: str, columns: Subjects) -> list[float]:
        numbers = [self.view.printed((("model", model),), f"{GENERATED}_{name}") for name in columns]
        return [number.mean for number in numbers if number is not None]

    def _always_a(self) -> list[str]:
        found = self.view.samples(f"{ALWAYS_A}_average", {"model": MODELS[0]})
        average = stats.mean(list(found.values())) if found else 0.0
        return [f"Always saying A gives {average:.1f} %, which the authors' scoring leans to."] if found else []


def standard_error(columns: Subjects, accuracies: Mapping[str, float]) -> float:
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


def chance_half_width(columns: Subjects) -> float:
    """Return half the interval that holds 95 % of the averages of a guessing model."""
    return NORMAL_QUANTILE * standard_error(columns, dict.fromkeys(columns, CHANCE))


def _columns(view: View) -> Subjects:
    """Return MMLU's columns from the cells' config, or from the probe's where a scale does not ask them."""
    config: dict[str, Any] = view.plan.cells[0].config
    if "mmlu" not in config["probes"]:
        config = configs.compose(view.artifact.experiment, [PROBES])
    columns: Subjects = config["probes"]["mmlu"]["columns"]
    return columns
