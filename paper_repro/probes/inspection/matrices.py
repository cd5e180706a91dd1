"""nGPT, figures 5, 10, 11 and 12: how well conditioned the matrices of attention and MLP are.

Letters: L layers, H heads, Y = D/H, D width, M hidden width.  Matrices are stored with D last, so a head's slice of
each attention matrix is (Y, D): of W_o, too, whose inputs are the heads' outputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from paper_repro.base.errors import at_least
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.llama import GatedFeedForward, RotaryAttention
from paper_repro.probes.inspection.tools import (
    branches,
    counts,
    document,
    inspected,
    logarithmic_edges,
    rounded,
    shares,
)
from paper_repro.training.module import PaperModule

ATTACHMENT = "matrices.json"
ATTENTION = ("query", "key", "value", "output")
FEED_FORWARD = ("u", "nu", "mlp_output")
EDGES = logarithmic_edges(-4, 3)


@dataclass(frozen=True)
class Matrices:
    """Inspects every layer's matrices in float64.

    A condition number is the largest singular value over the smallest: of attention matrices that of each head's slice
    (Y, D), median over the heads; of MLP matrices, which have no heads, that of the whole (M, D).  ``renormalized``
    ones are of the same matrices after nGPT's rule, unit vectors along D, was applied to them (figure 10, dotted).

    * ``condition_<matrix>``, ``<matrix>`` of query, key, value, output, u, nu, mlp_output: geometric mean over layers.
    * ``condition_attention``, ``condition_mlp``: geometric mean over the matrices, too.
    * ``condition_attention_renormalized``, ``condition_mlp_renormalized``.

    The attachment holds the condition numbers by layer; and, of ``layers``, the histograms of the norms of the vectors
    along D of the whole attention matrices and of the singular values of all heads.  An RMSNorm's gain in front of a
    matrix is not counted as part of it.

    Args:
        layers: counted from 1 as in the paper, whose figures 11 and 12 show the third and fourth; those beyond the
            model's last are left out.
    """

    layers: Sequence[int] = (3, 4)

    def __post_init__(self) -> None:
        for layer in self.layers:
            at_least("layers", layer)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Inspect ``module.model``; of the data nothing is read.

        Raises:
            UsageError: a model of another family than nGPT and its baseline.
        """
        curves: dict[str, dict[str, list[float]]] = {"plain": {}, "renormalized": {}}
        histograms: dict[str, Any] = {}
        for layer, (reading, feed_forward) in enumerate(branches(inspected(module)), start=1):
            attention = attention_slices(reading)
            for name, slices in (attention | feed_forward_matrices(feed_forward)).items():
                curves["plain"].setdefault(name, []).append(median_condition(slices))
                curves["renormalized"].setdefault(name, []).append(median_condition(normalize(slices, dim=-1)))
            if layer in self.layers:
                histograms[str(layer)] = {name: _histograms(slices) for name, slices in attention.items()}
        content = {
            "edges": EDGES,
            "conditions": {kind: {name: rounded(own) for name, own in curves[kind].items()} for kind in curves},
            "layers": histograms,
        }
        return Findings(_metrics(curves), {ATTACHMENT: document(content)})


def attention_slices(attention: RotaryAttention) -> dict[str, Tensor]:
    """Return each head's part of the four matrices, (H, Y, D), float64."""
    heads = attention.num_heads
    stacked = attention.query_key_value.weight.detach().double().unflatten(0, (3, heads, -1))  # (3, H, Y, D)
    written = attention.output.weight.detach().double().unflatten(0, (heads, -1))  # (H, Y, D)
    return dict(zip(ATTENTION, (*stacked, written), strict=True))


def feed_forward_matrices(feed_forward: GatedFeedForward) -> dict[str, Tensor]:
    """Return W_u, W_nu and W_o of the MLP, (1, M, D), float64."""
    u, nu = feed_forward.up.weight.detach().double().chunk(2)  # (M, D) each
    return dict(zip(FEED_FORWARD, (u[None], nu[None], feed_forward.down.weight.detach().double()[None]), strict=True))


def median_condition(slices: Tensor) -> float:
    """Return the median over matrices (N, rows, columns) of sigma_max / sigma_min, float64.

    A matrix without full rank counts as 1 / eps, with eps the rounding of its dtype.
    """
    values = torch.linalg.svdvals(slices)  # (N, min(rows, columns)), the largest first
    largest, smallest = values[:, 0], values[:, -1]
    eps = torch.finfo(values.dtype).eps
    return float((largest / smallest.clamp(min=eps * largest)).nan_to_num(1 / eps).quantile(0.5))


def _histograms(slices: Tensor) -> dict[str, list[float]]:
    singular = torch.linalg.svdvals(slices)
    return {"norms": shares(counts(slices.norm(dim=-1), EDGES)), "singular": shares(counts(singular, EDGES))}


def _metrics(curves: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    plain, renormalized = curves["plain"], curves["renormalized"]
    found = {f"condition_{name}": _geometric_mean(values) for name, values in plain.items()}
    for group, names in (("attention", ATTENTION), ("mlp", FEED_FORWARD)):
        found[f"condition_{group}"] = _geometric_mean([value for name in names for value in plain[name]])
        all_after = [value for name in names for value in renormalized[name]]
        found[f"condition_{group}_renormalized"] = _geometric_mean(all_after)
    return found


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))
