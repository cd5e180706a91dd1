"""EBT on language, sections 4.1 and C.2: predictions of the next token by descending an energy, and the baseline."""

from dataclasses import replace

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
        start, steps = self.noise(ids, 1), self.thinking.longest  # (1, B, T, V)
        settings = replace(self.thinking, num_steps=steps, most_steps=None)
        noise = normal_draws(start.flatten(0, 1)) if settings.noise else None
        for step, considered in enumerate(think(self.model, ids, start, steps, settings, noise=noise)):
            for name, counted in (("first_loss", 1), ("loss", steps)):
                if step == counted:
                    metrics[name].update(*summed_negative_log_likelihood(considered.predictions[0], targets))
