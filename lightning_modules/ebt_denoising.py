"""EBT on images, section 4.4 and D.4: taking noise away by descending an energy, and by diffusion, the baseline.

A batch is images (B, C, S, S) in [-1, 1].  Errors are counted on the scale of 8 bits, 0 to 255, after predictions are
clipped to it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from torchmetrics import Metric

from paper_repro.lightning_modules.prediction_descent import Pair, PredictionDescent, ReplaySettings
from paper_repro.metrics.pooled import Mean, new_errors, update_errors
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import ThinkingSettings
from paper_repro.models.ebt_image import DiT, ImageEBT, denoised
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Schedule
from paper_repro.training.tensors import Distribution, Normal, Uniform


class EBTDenoising(PredictionDescent):
    """EBT on noised images: predictions begin there, and the error is Smooth L1.

    Metrics of each split, after the steps of training and at the noise of training: ``loss``, and see ``new_errors``.

    Args:
        time: t, of the noise of training, 0 ... 999.
    """

    model: ImageEBT

    def __init__(
        self,
        model: ImageEBT,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        thinking: ThinkingSettings | Mapping[str, Any] | None = None,
        step_size_multiplier: float = 9000.0,
        replay: ReplaySettings | Mapping[str, Any] | None = None,
        time: int = 99,
    ) -> None:
        super().__init__(model, optimizer, schedule, thinking, step_size_multiplier, replay)
        self.time = diffusion.check_time(time)

    def read(self, batch: Tensor) -> Pair:
        patches = self.model.patches.cut(batch)  # (B, T, V)
        return patches, patches

    def start(self, batch: Tensor, draws: dict[str, Tensor]) -> Tensor:
        patches = self.model.patches.cut(batch)  # (B, T, V)
        return diffusion.signal(self.time) * patches + diffusion.noise_std(self.time) * draws["start"]

    def error(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return functional.smooth_l1_loss(prediction, targets)

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), **new_errors()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Tensor) -> None:
        noised = diffusion.signal(self.time) * batch + diffusion.noise_std(self.time) * torch.randn_like(batch)
        *_, (found, _) = denoised(self.model, noised, self.thinking.longest, self.thinking)
        metrics["loss"].update(self.error(found, batch), len(batch))
        update_errors(metrics, found, batch)


class DiffusionDenoising(PaperModule):
    """DiT on noised images: the hybrid loss at times drawn uniformly from 0 ... ``time``.

    Metrics of each split: ``loss``; and, of the image that one step of DDIM finds at ``time``, see ``new_errors``.

    Args:
        time: the last time of training, 0 ... 999.
    """

    model: DiT

    def __init__(self, model: DiT, optimizer: Callable[..., Optimizer], schedule: Schedule, time: int = 99) -> None:
        super().__init__(model, optimizer, schedule)
        self.time = diffusion.check_time(time)

    def random_tensors(self, batch: Tensor) -> dict[str, Distribution]:
        return {"noise": Normal(tuple(batch.shape)), "times": Uniform((len(batch),))}

    def loss_and_carry(self, batch: Tensor, draws: dict[str, Tensor], carry: Any) -> tuple[Tensor, Any]:
        return self._loss(batch, draws["times"], draws["noise"]), carry

    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), **new_errors()}

    def update_metrics(self, metrics: dict[str, Metric], batch: Tensor) -> None:
        noise, places = torch.randn_like(batch), torch.rand(len(batch), device=batch.device)
        metrics["loss"].update(self._loss(batch, places, noise), len(batch))
        noised = diffusion.signal(self.time) * batch + diffusion.noise_std(self.time) * noise
        (found,) = diffusion.ddim(self.model, noised, self.time, 1)
        update_errors(metrics, found, batch)

    def _loss(self, images: Tensor, places: Tensor, noise: Tensor) -> Tensor:
        """Return the mean loss at times that lie at ``places``, (B,), in [0, 1)."""
        times = (places * (self.time + 1)).long().clamp(max=self.time)  # (B,)
        squared, bits = diffusion.losses(self.model, images, times, noise)
        return (squared + bits).mean()
