"""FLOPs and parameters of one recurrence of a model's block, counted on the meta device (NRGPT, appendix D)."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.configs import instantiate
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.training.counting import count_flops, num_parameters

BASELINE = "paper_repro.models.gpt.RGPT"
BASELINE_HIDDEN_FACTOR = 4
SHELL = ("token_embedding", "position_embedding", "final_norm", "output")
"""What a recurrence does not read: embeddings, last norm and output."""


@dataclass(frozen=True)
class Counts:
    """Parameters of one block, and FLOPs of one recurrence of it on one sequence of T tokens.

    FLOPs are those of the matrix products, two for each multiply-add.
    """

    width: int
    parameters: int
    """Trainable parameters of the block alone."""
    attention: int
    """FLOPs of attention with its maps of query, key, value and output; NRGPT: of its gradient, without eta."""
    feed_forward: int
    """FLOPs of the feed-forward part; NRGPT: of its gradient."""
    total: int
    """FLOPs of the whole block."""


class BlockCost(Task):
    """Counts a block, and RGPT's with the same settings, on the meta device; a task that trains nothing."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [Outcome(FINISHED, metrics=_metrics(cell.config)) for cell in cells]


def _metrics(config: Mapping[str, Any]) -> dict[str, float]:
    block, window = config["block"], config["window"]
    reference = {**block, "_target_": BASELINE, "hidden_factor": BASELINE_HIDDEN_FACTOR}
    baseline = count(reference, window)
    if config["equal_parameters"]:
        block = {**block, "width": _matching_width(block, baseline.parameters)}
    own = count(block, window)
    return {
        "width": own.width,
        "parameters": own.parameters,
        "parameters_ratio": own.parameters / baseline.parameters,
        "attention": own.attention,
        "feed_forward": own.feed_forward,
        "flops": own.total,
        "attention_ratio": own.attention / baseline.attention,
        "feed_forward_ratio": own.feed_forward / baseline.feed_forward,
        "ratio": own.total / baseline.total,
    }


def count(block: Mapping[str, Any], window: int) -> Counts:
    """Count a model's block on one sequence of ``window`` tokens.

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
    return Counts(
        width=block["width"],
        parameters=num_parameters(model, leave_out=SHELL),
        attention=flops(attention),
        feed_forward=flops(feed_forward),
        total=flops(model.layers()[0]),
    )


def _matching_width(block: Mapping[str, Any], parameters: int) -> int:
    """Find the multiple of ``num_heads`` whose block comes nearest to that many parameters."""

    def of(width: int) -> int:
        with torch.device("meta"):
            return num_parameters(instantiate({**block, "width": width}), leave_out=SHELL)

    widths = range(block["num_heads"], 4 * block["width"], block["num_heads"])
    above = bisect_left(widths, parameters, key=of)
    return min(widths[max(above - 1, 0) : above + 1], key=lambda width: abs(of(width) - parameters))
