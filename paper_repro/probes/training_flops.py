"""Counted FLOPs: of a training step of EBT's models, and of one recurrence of a block (NRGPT, appendix D).

FLOPs are those of the matrix products, two for each multiply-add.
"""

import copy
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.configs import instantiate
from paper_repro.cells.tasks import FINISHED, Cell, Findings, Outcome, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.kernels.preferences import prefer
from paper_repro.training.counting import count_flops, num_parameters
from paper_repro.training.module import PaperModule

OUTSIDE_THE_TRUNK = ("token_embedding", "prediction_embedding", "embedding", "output", "step_size_parameter")
"""What leads into the trunk and out of it, for tokens the tables with a row or a column for each id; and alpha."""
BASELINE = {"_target_": "paper_repro.models.gpt.RGPT", "hidden_factor": 4}
SHELL = ("token_embedding", "position_embedding", "final_norm", "output")
"""What a recurrence does not read: embeddings, last norm and output."""


@dataclass(frozen=True)
class TrainingFlops:
    """Counts a training step of a module on the meta device, with the ops' definitions.

    * ``trunk_parameters``: N, all but what leads into the trunk and out of it, and alpha.
    * ``step_flops``: of one batch, forward and backward; where the number of steps of a prediction is random, with the
      most.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        twin = copy.deepcopy(module).to("meta")
        batch = data.example_batch()
        batch = batch.to("meta") if isinstance(batch, Tensor) else tuple(part.to("meta") for part in batch)
        with prefer(implementation="reference"), torch.enable_grad():
            counted = count_flops(lambda: twin.counted_step(batch))
        parameters = num_parameters(twin.model, leave_out=OUTSIDE_THE_TRUNK)
        return Findings({"trunk_parameters": float(parameters), "step_flops": float(counted)})


class BlockCost(Task):
    """Counts a block, and RGPT's with the same settings, on the meta device; a task that trains nothing.

    ``width``, ``parameters`` of the block alone, ``attention``, ``feed_forward`` and ``flops`` of the whole block as of
    ``count``; and the ratio of each but the width to RGPT's.
    """

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        block, window = cell.config["block"], cell.config["window"]
        baseline = count({**block, **BASELINE}, window)
        if cell.config["equal_parameters"]:
            block = {**block, "width": _matching_width(block, baseline["parameters"])}
        own = count(block, window)
        ratios = {f"{name}_ratio": own[name] / baseline[name] for name in ("attention", "feed_forward", "parameters")}
        found = {"width": block["width"], **own, **ratios, "ratio": own["flops"] / baseline["flops"]}
        return Outcome(FINISHED, metrics=found)


def count(block: Mapping[str, Any], window: int) -> dict[str, int]:
    """Count a model's block on one sequence of ``window`` tokens: trainable ``parameters`` of the block alone, FLOPs of
    ``attention`` with its maps of query, key, value and output and of ``feed_forward`` (NRGPT: of their gradients,
    without eta), and ``flops`` of one recurrence of the whole block.

    The counter sees every operation that is dispatched, those inside a custom autograd function too; attention counts
    all T^2 pairs, seen or masked, for every model alike.
    """
    with torch.device("meta"):
        model = instantiate(block)
        x = torch.empty(1, window, block["width"])  # (1, T, D)

    def flops(part: Callable[[Tensor], Any]) -> int:
        with torch.no_grad():
            return count_flops(lambda: part(x))

    if hasattr(model, "gradients"):
        attention, feed_forward = model.attention.gradient, model.feed_forward.gradient
    else:
        attention, feed_forward = model.block.attention, model.block.feed_forward
    return {
        "parameters": num_parameters(model, leave_out=SHELL),
        "attention": flops(attention),
        "feed_forward": flops(feed_forward),
        "flops": flops(model.layers()[0]),
    }


def _matching_width(block: Mapping[str, Any], parameters: int) -> int:
    """Find the multiple of ``num_heads`` whose block comes nearest to that many parameters."""

    def of(width: int) -> int:
        with torch.device("meta"):
            return num_parameters(instantiate({**block, "width": width}), leave_out=SHELL)

    widths = range(block["num_heads"], 4 * block["width"], block["num_heads"])
    above = bisect_left(widths, parameters, key=of)
    return min(widths[max(above - 1, 0) : above + 1], key=lambda width: abs(of(width) - parameters))
