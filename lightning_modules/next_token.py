"""What every experiment on sequences of tokens shares: next-token cross-entropy, and which weights decay."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric

from paper_repro.metrics.likelihood import CrossEntropy, summed_negative_log_likelihood
from paper_repro.models.rotary import RotaryLanguageModel
from paper_repro.training.module import PaperModule

Pair = tuple[Tensor, Tensor]


class NextTokenModule(PaperModule):
    """Mean cross-entropy of the next token on (ids, next ids); ``loss`` of each split in nats per token.

    Every position counts, none is padding.  With ``decay_matrices_only`` the optimiser's weight decay is for tensors of
    two or more dimensions, as in nanoGPT; biases, norms and scalars have none.

    Shape: ids and next ids (B, T), int64; the model maps the first to logits (B, T, V).
    """

    decay_matrices_only = True

    def loss(self, batch: Pair) -> Tensor:
        ids, following = batch
        return functional.cross_entropy(self.model(ids).flatten(0, 1), following.flatten())

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": CrossEntropy()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        ids, following = batch
        metrics["loss"].update(*summed_negative_log_likelihood(self.model(ids), following))

    def parameter_groups(self) -> list[dict[str, Any]]:
        if not self.decay_matrices_only:
            return super().parameter_groups()
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim >= 2]
        others = [parameter for parameter in trained if parameter.ndim < 2]
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]


class ChunkedNextTokenModule(NextTokenModule):
    """The same of a RotaryLanguageModel, whose logits never lie whole in memory.

    Shape: ids and next ids (B, T), int64.
    """

    model: RotaryLanguageModel

    def loss(self, batch: Pair) -> Tensor:
        return self.model.cross_entropy(*batch)

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        losses = self.model.negative_log_likelihoods(*batch)
        metrics["loss"].update(losses.sum(dtype=torch.float64), losses.numel())
