"""FLOPs and parameters of one recurrence of a model's block, counted on the meta device (NRGPT, appendix D)."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paper_repro.base.targets import instantiate
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report

BASELINE = "paper_repro.models.gpt.RGPT"
BASELINE_HIDDEN_FACTOR = 4


@dataclass(frozen=True)
class Counts:
    """Of one recurrence of one block on one sequence of T tokens; matrix products only, two FLOPs a multiply-add."""

    width: int
    parameters: int
    """Trainable, of the block alone."""
    attention: int
    """With its maps of query, key, value and output; NRGPT: of its gradient, without eta."""
    feed_forward: int
    total: int


class BlockCost:
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
    """Counts of a model's block on one sequence of ``window`` tokens.

    The counter sees every operation that is dispatched, those inside a custom autograd function too; attention counts
    all T^2 pairs, seen or masked, for every model alike.
    """
    with torch.device("meta"):
        model = instantiate(block)
        x = torch.empty(1, window, block["width"])

    def flops(part: Callable[[Tensor], Any]) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            part(x)
        return int(counter.get_total_flops())

    if hasattr(model, "gradients"):
        attention, feed_forward = model.attention.gradient, model.feed_forward.gradient
    else:
        attention, feed_forward = model.block.attention, model.block.feed_forward
    return Counts(
        block["width"], _block_parameters(model), flops(attention), flops(feed_forward), flops(model.layers()[0])
    )


def _block_parameters(model: Any) -> int:
    """Trainable parameters that a recurrence reads: all but embeddings, last norm and output."""
    shell = ("token_embedding", "position_embedding", "final_norm", "output")
    named = ((name.partition(".")[0], parameter) for name, parameter in model.named_parameters())
    return sum(parameter.numel() for part, parameter in named if part not in shell and parameter.requires_grad)


def _matching_width(block: Mapping[str, Any], parameters: int) -> int:
    """The multiple of ``num_heads`` whose block comes nearest to that many parameters."""

    def of(width: int) -> int:
        with torch.device("meta"):
            return _block_parameters(instantiate({**block, "width": width}))

    widths = range(block["num_heads"], 4 * block["width"], block["num_heads"])
    above = bisect_left(widths, parameters, key=of)
    return min(widths[max(above - 1, 0) : above + 1], key=lambda width: abs(of(width) - parameters))
