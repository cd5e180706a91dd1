"""What every experiment on sequences of tokens shares: next-token cross-entropy, and which weights decay."""

from typing import Any

from torch import Tensor
from torchmetrics import Metric

from paper_repro.metrics.likelihood import (
    CrossEntropy,
    counted_sum,
    mean_cross_entropy,
    num_counted,
    or_zero,
    summed_negative_log_likelihood,
)
from paper_repro.models.llama import RotaryLanguageModel
from paper_repro.training.module import Draws, PaperModule
from paper_repro.training.steps import Tree

Pair = tuple[Tensor, Tensor]


class NextTokenModule(PaperModule):
    """Mean cross-entropy of the next token on (ids, next ids); ``loss`` of each split in nats per token.

    Targets of -100, padding, do not count.  With ``decay_matrices_only`` the optimiser's weight decay is for tensors of
    two or more dimensions, as in nanoGPT; biases, norms and scalars have none.

    Shape: ids and next ids (B, T), int64; the model maps the first to logits (B, T, V).
    """

    decay_matrices_only = True

    def loss(self, batch: Pair) -> Tensor:
        ids, following = batch
        return mean_cross_entropy(self.model(ids), following)

    def num_targets(self, batch: Pair, draws: Draws | None = None, carry: Tree = None) -> Tensor:
        return num_counted(batch[1])

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": CrossEntropy()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        ids, following = batch
        metrics["loss"].update(*summed_negative_log_likelihood(self.model(ids), following))

    def decays(self, name: str, parameter: Tensor) -> bool:
        """Return whether weight decay is for a parameter, where it is not for all."""
        return parameter.ndim >= 2

    def parameter_groups(self) -> list[dict[str, Any]]:
        if not self.decay_matrices_only:
            return super().parameter_groups()
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                groups[self.decays(name, parameter)].append(parameter)
        return [{"params": groups[True]}, {"params": groups[False], "weight_decay": 0.0}]


class ChunkedNextTokenModule(NextTokenModule):
    """The same of a RotaryLanguageModel, whose logits never lie whole in memory."""

    model: RotaryLanguageModel

    def loss(self, batch: Pair) -> Tensor:
        return or_zero(self.model.cross_entropy(*batch), batch[1])

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        metrics["loss"].update(*counted_sum(self.model.negative_log_likelihoods(*batch), batch[1]))
