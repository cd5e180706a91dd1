"""nGPT, figures 4 to 6, 10 to 12 and 14: tables, matrices and learned scales of trained nGPT and GPT models.

Letters: L layers, H heads, Y = D/H, D width, M hidden width, V rows of a table.  Matrices are stored with D last, so a
head's slice of each attention matrix is (Y, D): of W_o, too, whose inputs are the heads' outputs.

A histogram is the share of the values in each bin of fixed edges, so that those of several runs can be averaged and
drawn over one another; what lies beyond the edges counts in the first or last bin.  An attachment is JSON without
blanks.  A model of another family is refused by UsageError.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.llama import GatedFeedForward, RotaryAttention, RotaryLanguageModel
from paper_repro.probes.attachments import rounded
from paper_repro.training.module import PaperModule


def inspected(module: PaperModule) -> RotaryLanguageModel:
    """Return the model to inspect; raise UsageError if it has other parts than nGPT and its baseline."""
    if not isinstance(module.model, RotaryLanguageModel) or not branches(module.model):
        raise UsageError(f"inspection looks at nGPT and its baseline, found {type(module.model).__name__}")
    return module.model


def branches(model: RotaryLanguageModel) -> list[tuple[RotaryAttention, GatedFeedForward]]:
    """Return attention and MLP of each layer, the first layer's first; empty where a layer has others."""
    parts = list(model.blocks.modules())
    attention = [part for part in parts if isinstance(part, RotaryAttention)]
    feed_forward = [part for part in parts if isinstance(part, GatedFeedForward)]
    return list(zip(attention, feed_forward, strict=True)) if len(attention) == len(feed_forward) else []


# Histograms.


def logarithmic_edges(low: int, high: int, per_decade: int = 20) -> list[float]:
    """Return edges from 10^low to 10^high, half a bin further on both sides: a power of ten is the middle of a bin."""
    steps = range((high - low) * per_decade + 2)
    return rounded(10 ** (low + (step - 0.5) / per_decade) for step in steps)


def symmetric_edges(unit: float, reach: float, step: float) -> list[float]:
    """Return the edges unit sinh(t), t evenly spaced: bins of about ``unit * step`` around zero, which is the middle of
    one, growing with the distance up to ``reach``.
    """
    count = math.ceil(math.asinh(reach / unit) / step)
    return rounded(unit * math.sinh((index - 0.5) * step) for index in range(-count, count + 2))


def counts(values: Tensor, edges: Sequence[float]) -> Tensor:
    """Return how many of the values fall into each bin, int64, (bins,)."""
    inner = torch.tensor(edges[1:-1], dtype=values.dtype, device=values.device)
    return torch.bincount(torch.bucketize(values.flatten(), inner), minlength=len(edges) - 1)


def shares(found: Tensor) -> list[float]:
    """Return the counts of the bins over their sum."""
    return rounded(found.double() / found.sum())


def _document(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


# Tables.

NORM_EDGES = logarithmic_edges(-3, 3)
DOT_EDGES = symmetric_edges(unit=0.05, reach=1000.0, step=0.1)
CHUNK = 1024  # rows whose dot products with all others are taken at once


@dataclass(frozen=True)
class Embeddings:
    """Inspects both tables, (V, D), in float64; ``in_`` is the input table's, ``out_`` the output table's.

    * ``norm_mean``, ``norm_variation``, ``norm_error``: mean of the norms of the rows, their standard deviation over
      that mean, and the largest |norm - 1|.
    * ``spread_95``, ``spread_max``: the 95th percentile and the largest of the eigenvalues of the rows' covariance
      (D, D), each over the median eigenvalue.
    * ``dot_mean``, ``dot_std``: of the dot products of distinct rows as they are stored, not normalised.

    The attachment holds both histograms and all eigenvalues over their median, largest first.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = inspected(module)
        metrics: dict[str, float] = {}
        content: dict[str, Any] = {"edges": {"norm": NORM_EDGES, "dot": DOT_EDGES}}
        for name, table in (("in", model.token_embedding.weight), ("out", model.output.weight)):
            numbers, content[name] = _of_table(table.detach().double())
            metrics |= {f"{name}_{key}": value for key, value in numbers.items()}
        return Findings(metrics, {"embeddings.json": _document(content)})


def _of_table(rows: Tensor) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the metrics of one table (V, D), and what the attachment holds of it."""
    norms = rows.norm(dim=1)  # (V,)
    spread = eigenvalues_over_median(rows)  # (D,)
    binned = torch.zeros(len(DOT_EDGES) - 1, dtype=torch.int64, device=rows.device)
    total = squares = 0.0
    for start in range(0, len(rows) - 1, CHUNK):
        products = rows[start : start + CHUNK] @ rows[start:].T  # (C, V - start), C rows at once
        dots = products[torch.ones_like(products, dtype=torch.bool).triu(1)]  # each pair once
        binned += counts(dots, DOT_EDGES)
        total, squares = total + float(dots.sum()), squares + float(dots.square().sum())
    pairs = int(binned.sum())
    mean = total / pairs
    numbers = {
        "norm_mean": float(norms.mean()),
        "norm_variation": float(norms.std() / norms.mean()),
        "norm_error": float((norms - 1).abs().max()),
        "spread_95": float(spread.quantile(0.95)),
        "spread_max": float(spread[0]),
        "dot_mean": mean,
        "dot_std": max(0.0, squares / pairs - mean**2) ** 0.5,
    }
    kept = {"norms": shares(counts(norms, NORM_EDGES)), "eigenvalues": rounded(spread)}
    return numbers, {**kept, "dots": shares(binned)}


def eigenvalues_over_median(rows: Tensor) -> Tensor:
    """Return the eigenvalues of the covariance (D, D) of rows (V, D) over their median, largest first."""
    found = torch.linalg.eigvalsh(rows.T.cov()).flip(0).clamp(min=0)
    # Fewer rows than dimensions leave eigenvalues of zero: their median counts as rounding's size.
    return found / found.quantile(0.5).clamp(min=float(found[0]) * torch.finfo(found.dtype).eps)


# Matrices.

ATTENTION = ("query", "key", "value", "output")
FEED_FORWARD = ("u", "nu", "mlp_output")
MATRIX_EDGES = logarithmic_edges(-4, 3)


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

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        plain: dict[str, list[float]] = {name: [] for name in (*ATTENTION, *FEED_FORWARD)}
        renormalized: dict[str, list[float]] = {name: [] for name in plain}
        histograms: dict[str, Any] = {}
        for layer, (reading, feed_forward) in enumerate(branches(inspected(module)), start=1):
            attention = attention_slices(reading)
            for name, slices in (attention | feed_forward_matrices(feed_forward)).items():
                plain[name].append(median_condition(slices))
                renormalized[name].append(median_condition(normalize(slices, dim=-1)))
            if layer in self.layers:
                histograms[str(layer)] = {name: _histograms(slices) for name, slices in attention.items()}
        found = {f"condition_{name}": geometric_mean(values) for name, values in plain.items()}
        for group, names in (("attention", ATTENTION), ("mlp", FEED_FORWARD)):
            for ending, curves in (("", plain), ("_renormalized", renormalized)):
                found[f"condition_{group}{ending}"] = geometric_mean([one for name in names for one in curves[name]])
        conditions = {
            kind: {name: rounded(own) for name, own in curves.items()}
            for kind, curves in (("plain", plain), ("renormalized", renormalized))
        }
        content = {"edges": MATRIX_EDGES, "conditions": conditions, "layers": histograms}
        return Findings(found, {"matrices.json": _document(content)})


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
    values = {"norms": slices.norm(dim=-1), "singular": torch.linalg.svdvals(slices)}
    return {name: shares(counts(own, MATRIX_EDGES)) for name, own in values.items()}


# Scales.

RATES = {"alpha_A": "attention_rate", "alpha_M": "feed_forward_rate"}
"""The eigen learning rates, and what a block calls them."""
ALPHA_EDGES = [round(0.02 * index, 2) for index in range(101)]
SCALE_EDGES = symmetric_edges(unit=1.0, reach=500.0, step=0.05)


@dataclass(frozen=True)
class Scales:
    """Inspects the learned vectors, or single numbers, of nGPT; of a model with some of them alone, these.

    All values are effective ones, stored * init / scale (section 2.5); s_u and s_nu without sqrt(D).

    * ``mean_<vector>``, ``<vector>`` of alpha_A, alpha_M (absolute values), s_qk, s_u, s_nu, s_z: mean over the layers
      of the mean over the vector.  A GPT has none of them, a GPT with QK norm has s_qk.
    * ``mean_abs_s_qk``: the same of |s_qk|.  Its sign has no effect, because s_qk multiplies queries and keys alike,
      and training at a high rate turns the sign of many elements.
    * ``sqk_spread``: mean |s_qk| of the layer where it is largest over that of the layer where it is smallest.

    The attachment holds the means by layer, of s_z its one, and a histogram of each vector over all layers.
    """

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        vectors = effective_scales(inspected(module))
        means = {name: [float(vector.mean()) for vector in found] for name, found in vectors.items()}
        metrics = {f"mean_{name}": sum(values) / len(values) for name, values in means.items()}
        if "s_qk" in vectors:
            sizes = [float(vector.abs().mean()) for vector in vectors["s_qk"]]
            means["|s_qk|"], metrics["mean_abs_s_qk"] = sizes, sum(sizes) / len(sizes)
            metrics["sqk_spread"] = max(sizes) / max(min(sizes), torch.finfo(torch.float32).tiny)
        edges = {name: ALPHA_EDGES if name in RATES else SCALE_EDGES for name in vectors}
        content = {
            "edges": edges,
            "means": {name: rounded(values) for name, values in means.items()},
            "shares": {name: shares(counts(torch.cat(found), edges[name])) for name, found in vectors.items()},
        }
        return Findings(metrics, {"scales.json": _document(content)})


def effective_scales(model: RotaryLanguageModel) -> dict[str, list[Tensor]]:
    """Map each vector that the model has to its effective values by layer, float64 (of s_z one entry)."""
    found: dict[str, list[Tensor]] = {}
    for block, (attention, feed_forward) in zip(model.blocks, branches(model), strict=True):
        scales = {name: getattr(block, attribute, None) for name, attribute in RATES.items()}
        scales |= {"s_qk": attention.scale, "s_u": feed_forward.scale_u, "s_nu": feed_forward.scale_nu}
        for name, scale in scales.items():
            if scale is not None:
                values = scale().detach().double()
                found.setdefault(name, []).append(values.abs() if name in RATES else values)
    last = getattr(model, "scale_z", None)
    return found if last is None else {**found, "s_z": [last().detach().double()]}
