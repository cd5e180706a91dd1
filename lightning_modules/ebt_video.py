"""EBT on video, appendix B.1 and D.2: the next frame's latent by descending an energy, and the baseline.

A batch is latents (B, T + 1, V), float32: T frames and the one that follows each.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from torchmetrics import Metric

from paper_repro.lightning_modules.prediction_descent import Pair, PredictionDescent, ReplaySettings
from paper_repro.metrics.pooled import Mean
from paper_repro.models.ebt import Considered, LatentEBT, LatentTransformer, ThinkingSettings, think
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Schedule


def following(batch: Tensor) -> Pair:
    """Return the frames that are known and the ones that follow them, (B, T, V) each."""
    return batch[:, :-1], batch[:, 1:]


class EBTVideo(PredictionDescent):
    """EBT on frames: predictions begin as normal numbers, and the error is Smooth L1.

    Metrics of each split: ``loss`` after the most steps of training and ``first_loss`` after the first one, from fresh
    normal numbers and without noise.
    """

    model: LatentEBT

    def __init__(
        self,
        model: LatentEBT,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        thinking: ThinkingSettings | Mapping[str, Any] | None = None,
        step_size_multiplier: float = 90_000.0,
        replay: ReplaySettings | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, optimizer, schedule, thinking, step_size_multiplier, replay)

    def read(self, batch: Tensor) -> Pair:
        return following(batch)

    def error(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return functional.smooth_l1_loss(prediction, targets)

    def predicted(self, frames: Tensor) -> list[Considered]:
        """Return what is predicted after each of frames (B, T, V), and its energies, after 0, 1, ..., S steps."""
        steps = self.thinking.longest
        settings = replace(self.thinking, num_steps=steps, most_steps=None, noise=0.0)
        return list(think(self.model, frames, self.noise(frames, 1), steps, settings))

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), "first_loss": Mean()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Tensor) -> None:
        frames, targets = following(batch)
        found = self.predicted(frames)
        for name, considered in (("first_loss", found[1]), ("loss", found[-1])):
            metrics[name].update(self.error(considered.predictions[0], targets), len(batch))


class TransformerVideo(PaperModule):
    """The baseline, Transformer++ on frames: Smooth L1; ``loss`` of each split."""

    model: LatentTransformer

    def loss(self, batch: Tensor) -> Tensor:
        frames, targets = following(batch)
        return functional.smooth_l1_loss(self.model(frames), targets)

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Tensor) -> None:
        metrics["loss"].update(self.loss(batch), len(batch))
