"""NRGPT, Table 6: chance, and how far from it the number of MMLU's questions lets guessing averages lie."""

import math
from collections.abc import Mapping
from typing import Any

from paper_repro.base import configs
from paper_repro.tables import stats, table
from paper_repro.tables.view import View

CHANCE = 25.0
NORMAL_QUANTILE = 1.959964
"""Quantile of a two-sided 95 % interval."""
PROBES = "probes=nrgpt/mmlu"
MODELS = ("ff2w", "rgpt_parallel", "gpt")
Subjects = Mapping[str, Mapping[str, int]]
"""The number of questions by column and subject."""


class Table6(table.Table):
    def summary(self) -> dict[str, float]:
        columns, found = _columns(self.view), {}
        for model in MODELS:
            numbers = [self.artifact.printed((("model", model),), f"mmlu_generated_{name}") for name in columns]
            found[f"printed_{model}"] = stats.mean([number.mean for number in numbers if number is not None])
        return found | {"chance": CHANCE, "chance_half_width": chance_half_width(columns)}


def chance_half_width(columns: Subjects) -> float:
    """Return half the interval that holds 95 % of the averages of a guessing model, in percentage points.

    The standard error of the mean over C columns of means over S subjects of n questions each is
    ``sqrt( sum_columns p (1 - p) sum_subjects 1 / n / (S C)^2 )``.
    """
    share = CHANCE / 100
    parts = [
        share * (1 - share) * math.fsum(1 / size for size in subjects.values()) / (len(subjects) * len(columns)) ** 2
        for subjects in columns.values()
    ]
    return 100 * NORMAL_QUANTILE * math.sqrt(math.fsum(parts))


def _columns(view: View) -> Subjects:
    """Return MMLU's columns from the cells' config, or from the probe's where a scale does not ask them."""
    config: dict[str, Any] = view.plan.cells[0].config
    if "mmlu" not in config["probes"]:
        config = configs.compose(view.artifact.experiment, [PROBES])
    columns: Subjects = config["probes"]["mmlu"]["columns"]
    return columns
