"""Parameters of a model, and FLOPs of its training step over those of a baseline, counted on the meta device."""

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
    """Counts ``model`` and a training step of it by ``module``; a task that trains nothing.

    * ``parameters``: without the children in ``tables`` and in ``left_out``; ``parameters_total``: all.
    * ``parameters_rebuilt``: the total, cut to three digits, less the ``tables``.

    and for each of the ``ways``, a mapping from names to keys of ``model`` and their values:

    * ``flops_<way>``: FLOPs of a step for one sequence of ``data.window`` tokens; ``ratio_<way>``: over the baseline's.
    * ``weights_<way>``: the same ratio, of the products with weights alone, at a vocabulary of one token.

    FLOPs are those of the matrix products of the ops' definitions, two for each multiply-add.  ``baseline`` has a model
    and a module.
    """

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        known: dict[str, tuple[int, int]] = {}  # sizes of one width differ in their layers alone
        with prefer("reference"):
            return [_outcome(cell.config, known) for cell in cells]


class Flops(NamedTuple):
    """FLOPs of a training step on one sequence."""

    whole: int
    weights: int
    """The part that is no product of two activations, at a vocabulary of one token."""


def _outcome(config: Mapping[str, Any], known: dict[str, tuple[int, int]]) -> Outcome:
    found, baseline = parameters(config), count({**config, **config["baseline"]}, known)
    ratios: dict[str, float] = {}
    for name, changes in config["ways"].items():
        own = count({**config, "model": {**config["model"], **changes}}, known)
        ratios[f"flops_{name}"] = own.whole
        ratios[f"ratio_{name}"] = own.whole / baseline.whole
        ratios[f"weights_{name}"] = own.weights / baseline.weights
    return Outcome(FINISHED, metrics={**found, **ratios}, parameters=found["parameters_total"])


def parameters(config: Mapping[str, Any]) -> dict[str, int]:
    """Count the parameters of ``model`` in the ways of ``StepFlops``.

    Raises:
        UsageError: a section that cannot be built.
    """
    model = _module(config).model
    total, without = num_parameters(model), num_parameters(model, leave_out=config["tables"])
    return {
        "parameters": num_parameters(model, leave_out=[*config["tables"], *config["left_out"]]),
        "parameters_total": total,
        "parameters_rebuilt": _cut(total) - (total - without),
    }


def count(config: Mapping[str, Any], known: dict[str, tuple[int, int]]) -> Flops:
    """Count a training step, forward and backward, on one sequence.

    The step of one layer is counted, at the whole vocabulary and at one token, and that of two layers at one token:
    every further layer costs what the second does, whatever the vocabulary.

    Args:
        config: has ``model``, ``module`` and ``data.window``.
        known: what was counted already; this call adds to it.

    Raises:
        UsageError: a section that cannot be built.
    """
    further = config["model"]["num_layers"] - 1
    at_vocabulary, _ = _count(config, {"num_layers": 1}, known)
    one, one_weights = _count(config, {"num_layers": 1, "vocabulary_size": 1}, known)
    two, two_weights = _count(config, {"num_layers": 2, "vocabulary_size": 1}, known)
    return Flops(at_vocabulary + further * (two - one), one_weights + further * (two_weights - one_weights))


def _count(config: Mapping[str, Any], changes: Mapping[str, Any], known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the FLOPs of a step of the changed model, and those that are no products of two activations."""
    model, window = {**config["model"], **changes}, config["data"]["window"]
    key = json.dumps([model, config["module"], window], sort_keys=True)
    if key not in known:
        module = _module({**config, "model": model})
        ids = torch.zeros(1, window, dtype=torch.long, device="meta")  # (1, T)
        found = flops_by_operation(lambda: module.counted_step((ids, ids)))
        between = sum(flops for operation, flops in found.items() if operation in PAIRWISE)
        known[key] = sum(found.values()), sum(found.values()) - between
    return known[key]


def _module(config: Mapping[str, Any]) -> Any:
    with torch.device("meta"):
        return build_module(config)


def _cut(count: int) -> int:
    """Cut a count to its first digits: 44,810,880 becomes 44.8 million."""
    unit = 10 ** (len(str(count)) - DIGITS)
    return count // unit * unit
