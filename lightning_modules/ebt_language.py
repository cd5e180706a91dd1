"""EBT on language, sections 4.1 and C.2: predictions of the next token by descending an energy, and the baseline."""

from dataclasses import replace

from torch import Tensor
from torchmetrics import Metric

from paper_repro.lightning_modules.next_token import NextTokenModule
from paper_repro.lightning_modules.prediction_descent import Pair, PredictionDescent
from paper_repro.metrics.likelihood import CrossEntropy, summed_negative_log_likelihood
from paper_repro.models.ebt import EBT, normal_draws, think


class TransformerLanguage(NextTokenModule):
    """The baseline, Transformer++: next-token cross-entropy; all of its weights decay, as in EBT's code."""

    decay_matrices_only = False


class EBTLanguage(PredictionDescent):
    """EBT on next tokens.

    Metrics of each split, in nats per token: ``loss`` after the last step and ``first_loss`` after the first one.  They
    begin from fresh normal numbers and take the most steps of training with the model's own alpha and the noise of
    training, as in EBT's code.

    Shape: ids and next ids (B, T), int64; targets of -100 do not count.
    """

    model: EBT

    def new_metrics(self) -> dict[str, Metric]:
        return {name: CrossEntropy() for name in ("loss", "first_loss")}

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        ids, targets = batch
        sums = self.sums_of_losses(ids, targets, self.noise(ids, 1))
        for name, found in zip(("first_loss", "loss"), sums, strict=True):
            metrics[name].update(*found)

    def sums_of_losses(self, ids: Tensor, targets: Tensor, start: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the sum of the losses, and the number of targets, after the first and after the last step.

        Args:
            start: logits (1, B, T, V).
        """
        settings = replace(self.thinking, num_steps=self.thinking.longest, most_steps=None)
        noise = normal_draws(start.flatten(0, 1)) if settings.noise else None
        found = think(self.model, ids, start, settings.num_steps, settings, noise=noise)
        sums = {
            step: summed_negative_log_likelihood(considered.predictions[0], targets)
            for step, considered in enumerate(found)
            if step in (1, settings.num_steps)
        }
        return [sums[1], sums[settings.num_steps]]
