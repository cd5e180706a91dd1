"""nGPT, section 3 and appendix A: language modelling by nGPT and the GPT that it is held against."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from paper_repro.lightning_modules.next_token import NextTokenModule, Pair
from paper_repro.models.ngpt import NGPT
from paper_repro.models.rotary import RotaryLanguageModel


class NGPTSpeedup(NextTokenModule):
    """Next-token cross-entropy whose logits never lie whole in memory; nGPT's matrices are kept at unit rows.

    Weight decay, which nGPT has none of, is for matrices only.  The group of the matrices asks for ``unit_rows``, so
    that they are projected right after every optimiser step, whichever optimiser makes it.

    Shape: ids and next ids (B, T), int64; the model is a RotaryLanguageModel.
    """

    model: RotaryLanguageModel

    def loss(self, batch: Pair) -> Tensor:
        return self.model.cross_entropy(*batch)

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        losses = self.model.negative_log_likelihoods(*batch)
        metrics["loss"].update(losses.sum(dtype=torch.float64), losses.numel())

    def parameter_groups(self) -> list[dict[str, Any]]:
        matrices, others = super().parameter_groups()
        return [{**matrices, "unit_rows": isinstance(self.model, NGPT)}, others]
