"""nGPT, figure 4: the rows of the input and output tables: their norms, their covariance, their dot products.

Letters: V rows, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import at_least
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.probes.inspection.tools import (
    counts,
    document,
    inspected,
    logarithmic_edges,
    rounded,
    shares,
    symmetric_edges,
)
from paper_repro.training.module import PaperModule

ATTACHMENT = "embeddings.json"
NORM_EDGES = logarithmic_edges(-3, 3)
DOT_EDGES = symmetric_edges(unit=0.05, reach=1000.0, step=0.1)
CHUNK = 1024
PAIR_CHUNK = 16_384


@dataclass(frozen=True)
class Embeddings:
    """Inspects both tables, (V, D), in float64; ``in_`` is the input table's, ``out_`` the output table's.

    * ``norm_mean``, ``norm_variation``, ``norm_error``: mean of the norms of the rows, their standard deviation over
      that mean, and the largest |norm - 1|.
    * ``spread_95``, ``spread_max``: the 95th percentile and the largest of the eigenvalues of the rows' covariance
      (D, D), each over the median eigenvalue.
    * ``dot_mean``, ``dot_std``: of the dot products of distinct rows as they are stored, not normalised.

    The attachment holds both histograms and all eigenvalues over their median, largest first.

    Args:
        all_pairs_up_to: largest V at which every pair of rows is taken.
        sampled_pairs: how many pairs are drawn above that, with a seed of their own.
    """

    all_pairs_up_to: int = 4096
    sampled_pairs: int = 1_000_000

    def __post_init__(self) -> None:
        at_least("all_pairs_up_to", self.all_pairs_up_to, 0)
        at_least("sampled_pairs", self.sampled_pairs)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Inspect ``module.model``; of the data nothing is read.

        Raises:
            UsageError: a model of another family than nGPT and its baseline.
        """
        model = inspected(module)
        metrics: dict[str, float] = {}
        content: dict[str, Any] = {"edges": {"norm": NORM_EDGES, "dot": DOT_EDGES}}
        for name, table in (("in", model.token_embedding.weight), ("out", model.output.weight)):
            numbers, content[name] = self._of(table.detach().double(), seed)
            metrics |= {f"{name}_{key}": value for key, value in numbers.items()}
        return Findings(metrics, {ATTACHMENT: document(content)})

    def _of(self, rows: Tensor, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
        norms = rows.norm(dim=1)  # (V,)
        spread = eigenvalues_over_median(rows)  # (D,)
        binned = torch.zeros(len(DOT_EDGES) - 1, dtype=torch.int64, device=rows.device)
        total = squares = 0.0
        for dots in self._dots(rows, seed):
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
        kept = {"norms": shares(counts(norms, NORM_EDGES)), "eigenvalues": rounded(spread.tolist())}
        return numbers, {**kept, "dots": shares(binned)}

    def _dots(self, rows: Tensor, seed: int) -> Iterator[Tensor]:
        """Compute the dot products of all pairs of distinct rows, or of a sample of them, part by part."""
        if len(rows) <= self.all_pairs_up_to:
            for start in range(0, len(rows) - 1, CHUNK):
                products = rows[start : start + CHUNK] @ rows[start:].T  # (C, V - start), C rows at once
                yield products[torch.ones_like(products, dtype=torch.bool).triu(1)]
            return
        generator = torch.Generator().manual_seed(mix(seed, "inspection", "pairs"))
        for start in range(0, self.sampled_pairs, PAIR_CHUNK):
            size = (min(PAIR_CHUNK, self.sampled_pairs - start),)
            first = torch.randint(len(rows), size, generator=generator)
            second = torch.randint(len(rows) - 1, size, generator=generator)
            second += second >= first  # any row but the first
            yield (rows[first.to(rows.device)] * rows[second.to(rows.device)]).sum(1)  # (pairs,)


def eigenvalues_over_median(rows: Tensor) -> Tensor:
    """Return the eigenvalues of the covariance (D, D) of rows (V, D) over their median, largest first."""
    found = torch.linalg.eigvalsh(rows.T.cov()).flip(0).clamp(min=0)
    # Fewer rows than dimensions leave eigenvalues of zero: their median counts as rounding's size.
    return found / found.quantile(0.5).clamp(min=float(found[0]) * torch.finfo(found.dtype).eps)
