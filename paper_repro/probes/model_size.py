"""Parameters of a language model at its paper's size, counted on the meta device."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.models.common import CausalLanguageModel
from paper_repro.training.counting import num_parameters


class ModelSize(Task):
    """Counts the model of ``counted``; a task that trains nothing.

    * ``parameters``: all trainable ones.
    * ``parameters_counted_early``: without the parts named in ``made_later``.
    * ``parameters_other_vocabulary``: all trainable ones, with ``other_vocabulary`` token ids.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [_outcome(cell.config) for cell in cells]


def _outcome(config: Mapping[str, Any]) -> Outcome:
    node = config["counted"]
    found = {
        "parameters": count(node),
        "parameters_counted_early": count(node, config["made_later"]),
        "parameters_other_vocabulary": count({**node, "vocabulary_size": config["other_vocabulary"]}),
    }
    metrics = {name: float(number) for name, number in found.items()}
    return Outcome(FINISHED, metrics=metrics, parameters=found["parameters"])


def count(node: Mapping[str, Any], left_out: Sequence[str] = ()) -> int:
    """Count the trainable parameters of the model that ``node`` describes, without its children in ``left_out``.

    Raises:
        UsageError: ``node`` describes no CausalLanguageModel, or the model refuses its arguments.
    """
    with torch.device("meta"):
        model = instantiate(node)
    if not isinstance(model, CausalLanguageModel):
        raise UsageError(f"counted: a CausalLanguageModel was expected, found {type(model).__name__}")
    return num_parameters(model, leave_out=left_out)
