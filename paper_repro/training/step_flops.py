"""Parameters of a model, and FLOPs of its training step over those of a baseline, counted on the meta device."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.kernels.preferences import prefer
from paper_repro.training.build import build_module
from paper_repro.training.counting import ATEN, flops_by_operation, num_parameters

PAIRWISE = (ATEN.bmm, ATEN.baddbmm)
"""Products of two activations, those of attention: a product with a weight has no batch of matrices."""
DIGITS = 3
"""How many digits of a total a framework's summary shows."""


class StepFlops(Task):
    """Counts ``model`` and a training step of it by ``module``.

    * ``parameters``: without the children in ``tables`` and in ``left_out``; ``parameters_total``: all.
    * ``parameters_rebuilt``: the total, cut to three digits, less the ``tables``.

    and for each of the ``ways``, a mapping from names to keys of ``model`` and their values:

    * ``flops_<way>``: FLOPs of a step for one sequence of ``data.window`` tokens; ``ratio_<way>``: over the baseline's.
    * ``weights_<way>``: the same ratio, of the products with weights alone, at a vocabulary of one token.

    FLOPs are those of the matrix products of the ops' definitions, two for each multiply-add.  ``baseline`` has a model
    and a module.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [_counted(cell.config) for cell in cells]


class Flops(NamedTuple):
    """FLOPs of a training step on one sequence."""

    whole: int
    weights: int
    """The part that is no product of two activations, at a vocabulary of one token."""


def _counted(config: Mapping[str, Any]) -> Outcome:
    found, baseline = parameters(config), count({**config, **config["baseline"]})
    ratios: dict[str, float] = {}
    for name, changes in config["ways"].items():
        own = count({**config, "model": {**config["model"], **changes}})
        ratios[f"flops_{name}"] = own.whole
        ratios[f"ratio_{name}"] = own.whole / baseline.whole
        ratios[f"weights_{name}"] = own.weights / baseline.weights
    return Outcome(FINISHED, metrics={**found, **ratios}, parameters=found["parameters_total"])


def parameters(config: Mapping[str, Any]) -> dict[str, int]:
    """Count the parameters of ``model`` in the ways of ``StepFlops``.

    Raises:
        UsageError: a section that cannot be built.
    """
    with torch.device("meta"):
        model = build_module(config).model
    total, without = num_parameters(model), num_parameters(model, leave_out=config["tables"])
    unit = 10 ** (len(str(total)) - DIGITS)  # 44,810,880 becomes 44.8 million
    return {
        "parameters": num_parameters(model, leave_out=[*config["tables"], *config["left_out"]]),
        "parameters_total": total,
        "parameters_rebuilt": total // unit * unit - (total - without),
    }


def count(config: Mapping[str, Any]) -> Flops:
    """Count a training step, forward and backward, on one sequence.

    The step of one layer is counted, at the whole vocabulary and at one token, and that of two layers at one token:
    every further layer takes what the second does.

    Raises:
        UsageError: a section that cannot be built.
    """

    def counted(**changes: int) -> Flops:
        parts = {key: config[key] for key in ("module", "optimizer", "schedule")}
        model = {**config["model"], **changes}
        return _count(json.dumps({**parts, "model": model, "seed": 0}, sort_keys=True), config["data"]["window"])

    further = config["model"]["num_layers"] - 1
    at_vocabulary = counted(num_layers=1)
    one, two = (counted(num_layers=layers, vocabulary_size=1) for layers in (1, 2))
    whole = at_vocabulary.whole + further * (two.whole - one.whole)
    return Flops(whole, one.weights + further * (two.weights - one.weights))


@functools.cache
def _count(text: str, window: int) -> Flops:
    """Count the step of a config, as JSON; sizes of one width differ in their layers alone."""
    ids = torch.zeros(1, window, dtype=torch.long, device="meta")  # (1, T)
    with prefer("reference"):
        with torch.device("meta"):
            module = build_module(json.loads(text))
        found = flops_by_operation(lambda: module.counted_step((ids, ids)))
    between = sum(flops for operation, flops in found.items() if operation in PAIRWISE)
    return Flops(sum(found.values()), sum(found.values()) - between)
