"""What the inspections of trained nGPT and GPT models share: the model they read, histograms, and the file they leave.

A histogram is the share of the values in each bin of fixed edges, so that those of several runs can be averaged and
drawn over one another; what lies beyond the edges counts in the first or last bin.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.models.llama import GatedFeedForward, RotaryAttention, RotaryLanguageModel
from paper_repro.training.module import PaperModule

DIGITS = 5
"""Significant digits of the numbers in the file."""


def inspected(module: PaperModule) -> RotaryLanguageModel:
    """Return the model to inspect.

    Raises:
        UsageError: it is of a family that has not the parts which are looked at.
    """
    if not isinstance(module.model, RotaryLanguageModel) or not branches(module.model):
        raise UsageError(
            "inspection looks at the tables, heads and gated MLPs of nGPT and its baseline, found "
            f"{type(module.model).__name__}: choose model=ngpt/gpt, ngpt/gpt_qk, ngpt/ngpt, or a cell trained with one"
        )
    return module.model


def branches(model: RotaryLanguageModel) -> list[tuple[RotaryAttention, GatedFeedForward]]:
    """Return attention and MLP of each layer, the first layer's first; empty where a layer has others."""
    parts = list(model.blocks.modules())
    attention = [part for part in parts if isinstance(part, RotaryAttention)]
    feed_forward = [part for part in parts if isinstance(part, GatedFeedForward)]
    return list(zip(attention, feed_forward, strict=True)) if len(attention) == len(feed_forward) else []


def logarithmic_edges(low: int, high: int, per_decade: int = 20) -> list[float]:
    """Return edges from 10^low to 10^high, half a bin further on both sides: every power of ten is the middle
    of a bin.
    """
    steps = range((high - low) * per_decade + 2)
    return [_rounded(10 ** (low + (step - 0.5) / per_decade)) for step in steps]


def symmetric_edges(unit: float, reach: float, step: float) -> list[float]:
    """Return bins of about ``unit * step`` around zero, which is the middle of one, growing with the distance up to
    ``reach``.

    The edges are unit sinh(t), t evenly spaced.
    """
    count = math.ceil(math.asinh(reach / unit) / step)
    return [_rounded(unit * math.sinh((index - 0.5) * step)) for index in range(-count, count + 2)]


def counts(values: Tensor, edges: Sequence[float]) -> Tensor:
    """Return how many of the values fall into each bin, int64, (bins,)."""
    inner = torch.tensor(edges[1:-1], dtype=values.dtype, device=values.device)
    return torch.bincount(torch.bucketize(values.flatten(), inner), minlength=len(edges) - 1)


def shares(found: Tensor) -> list[float]:
    """Return the counts of the bins over their sum."""
    return rounded((found.double() / found.sum()).tolist())


def rounded(values: Sequence[float]) -> list[float]:
    return [_rounded(value) for value in values]


def document(content: dict[str, Any]) -> bytes:
    """Write as JSON without blanks: edges, shares and curves, as lists of numbers."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
