"""What a count of token pairs chooses in tasks of the lm-evaluation-harness: a task that trains nothing.

Letters: B sequences, T tokens, V token ids.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report
from paper_repro.datamodules.text import TextData
from paper_repro.metrics.counts import BigramCounts
from paper_repro.probes.bigram_floor import BigramFloor
from paper_repro.probes.downstream import Downstream
from paper_repro.probes.floor_task import FloorTask


class DownstreamFloor(FloorTask):
    """Lets the bigram of ``BigramFloor``, counted on a cell's training data, answer the questions of ``Downstream``.

    Its metrics have the names of a trained model's, and are unavailable where those would be.

    Args:
        given: the arguments of ``Downstream``.

    Raises:
        ValueError: as ``Downstream``.
    """

    __signature__ = inspect.signature(Downstream)

    kinds = (TextData,)
    takes = "counts tokens of texts"

    def __init__(self, *given: Any, **named: Any) -> None:
        self.probe = Downstream(*given, **named)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(self.data_of(cell.config), folder / cell.id) for cell in cells]

    def _outcome(self, data: TextData, folder: Path) -> Outcome:
        found = self.probe.of_model(BigramModel(*BigramFloor().counts(data), data.window), data)
        outcome = Outcome(FINISHED, metrics=found.metrics, unavailable=found.unavailable)
        outcome.data_hashes = data.data_hashes()
        for name, content in found.attachments.items():
            outcome.attach(folder, name, content)
        return outcome


class BigramModel(nn.Module):
    """A count of token pairs as a language model: maps ids (B, T) to the logarithms of p(next | id), (B, T, V).

    Args:
        counts: of the pairs.
        weight: of the pairs against single tokens.
        block_length: the most tokens that the models it is held against see at once.
    """

    def __init__(self, counts: BigramCounts, weight: float, block_length: int) -> None:
        super().__init__()
        self.counts, self.weight, self.block_length = counts, weight, block_length
        self.rows: dict[int, Tensor] = {}
        """log p(next | id), (V,), of the ids that were asked for."""

    def forward(self, ids: Tensor) -> Tensor:
        known, places = ids.unique(return_inverse=True)  # (U,), (B, T)
        return torch.stack([self._row(int(one)) for one in known])[places]

    def _row(self, known: int) -> Tensor:
        if known not in self.rows:
            following = torch.arange(self.counts.vocabulary_size)
            previous = torch.full_like(following, known)
            self.rows[known] = self.counts.bigram(previous, following, self.weight).log()
        return self.rows[known]
