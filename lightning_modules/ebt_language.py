"""EBT on language, sections 4.1 and C.2: predictions of the next token by descending an energy, and the baseline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.optim import Optimizer
from torchmetrics import Metric

from paper_repro.base.arguments import at_least
from paper_repro.base.errors import UsageError
from paper_repro.lightning_modules.next_token import NextTokenModule
from paper_repro.lightning_modules.prediction_descent import Pair, PredictionDescent, ReplaySettings, settings_of
from paper_repro.metrics.likelihood import CrossEntropy, summed_negative_log_likelihood
from paper_repro.models.descent import normal_draws
from paper_repro.models.ebt.model import EBT
from paper_repro.models.ebt.steps import ThinkingSettings
from paper_repro.models.ebt.thinking import think
from paper_repro.training.schedules import Schedule


class TransformerLanguage(NextTokenModule):
    """The baseline, Transformer++: next-token cross-entropy; all of its weights decay, as in EBT's code.

    Targets of -100 do not count.
    """

    decay_matrices_only = False


@dataclass(frozen=True)
class Arm:
    """One more way to think at evaluations: the mean loss of the sample of lowest energy.

    Raises:
        ValueError: a number below 1.
    """

    num_steps: int = 1
    num_samples: int = 1

    def __post_init__(self) -> None:
        at_least("num_steps", self.num_steps)
        at_least("num_samples", self.num_samples)


class EBTLanguage(PredictionDescent):
    """EBT on next tokens.

    Metrics of each split, in nats per token: ``loss`` after the last step, ``first_loss`` after the first one, and
    ``<arm>_loss`` of each arm.  They begin from fresh normal numbers and take the most steps of training with the
    model's own alpha; ``loss`` and ``first_loss`` with the noise of training, as in EBT's code, the arms without.

    Args:
        thinking, step_size_multiplier, replay: see ``PredictionDescent``.
        arms: see ``Arm``, by name.

    Shape: ids and next ids (B, T), int64; targets of -100 do not count.  The model is an EBT.

    Raises:
        UsageError: as PredictionDescent, or an arm out of range or with fewer steps than the model has landscapes.
    """

    model: EBT

    def __init__(
        self,
        model: EBT,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        thinking: ThinkingSettings | Mapping[str, Any] | None = None,
        step_size_multiplier: float = 1500.0,
        replay: ReplaySettings | Mapping[str, Any] | None = None,
        arms: Mapping[str, Arm | Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(model, optimizer, schedule, thinking, step_size_multiplier, replay)
        try:
            self.arms = {name: settings_of(Arm, arm) for name, arm in (arms or {}).items()}
        except (TypeError, ValueError) as error:
            raise UsageError(f"module: {error}") from error
        for arm in self.arms.values():
            self.check_steps(arm.num_steps)

    def new_metrics(self) -> dict[str, Metric]:
        names = ["loss", "first_loss", *(f"{name}_loss" for name in self.arms)]
        return {name: CrossEntropy() for name in names}

    def update_metrics(self, metrics: dict[str, Metric], batch: Pair) -> None:
        ids, targets = batch
        settings = replace(self.thinking, num_steps=self.thinking.longest, most_steps=None)
        start = self.noise(ids, 1)
        noise = normal_draws(start.flatten(0, 1)) if settings.noise else None
        for index, considered in enumerate(think(self.model, ids, start, settings.num_steps, settings, noise=noise)):
            for name, at in (("first_loss", 1), ("loss", settings.num_steps)):
                if index == at:
                    logits = considered.predictions[0]  # (B, T, V)
                    metrics[name].update(*summed_negative_log_likelihood(logits, targets))
        for name, arm in self.arms.items():
            own = replace(settings, noise=0.0)
            *_, last = think(self.model, ids, self.noise(ids, arm.num_samples), arm.num_steps, own)
            metrics[f"{name}_loss"].update(*summed_negative_log_likelihood(last.choose()[0], targets))
