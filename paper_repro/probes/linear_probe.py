"""EBT, table 4: a linear classifier on the features of a denoiser that stays as it is.

Letters: N images, D features, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import UsageError, at_least, one_of, positive
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, Cell, Findings, Outcome, Report, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.images import ImageData
from paper_repro.models.ebt_image import DiT, ImageEBT
from paper_repro.training.module import PaperModule

TOP = (1, 5)
LEAST_STD = 1e-6


class Features(Protocol):
    """What gives numbers (N, D) of images (N, C, H, H) in [-1, 1]."""

    def __call__(self, images: Tensor, /) -> Tensor: ...


FLOORS: dict[str, Features] = {
    "pixels": lambda images: images.flatten(1),
    "chance": lambda images: torch.zeros(len(images), 1),
}
"""Features that need no model."""


@dataclass(frozen=True)
class LinearSettings:
    """How the classifier is trained: AdamW on the cross-entropy, features scaled to mean 0 and variance 1.

    The paper says no more than "linear probe".

    Raises:
        ValueError: a number out of range.
    """

    epochs: int = 50
    batch_size: int = 256
    lr: float = 0.01
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs)
        at_least("batch_size", self.batch_size)
        positive("lr", self.lr)


@dataclass(frozen=True)
class LinearProbe:
    """Trains a linear classifier of labelled images on the features of the module's model, which is not changed.

    The features are the mean over patches of the last block's states (EBT, D.3).  Images are brought to the model's
    size, each pixel repeated or the mean of several, and grey ones to three equal channels.  Metrics: shares between 0
    and 1 of the images of the last split, ``top_1`` and ``top_5``.

    Args:
        data: the section of the labelled images, an ImageData with ``labelled: true``; of each split at most its
            ``num_evaluation_images`` are taken.
        settings: see ``LinearSettings``.
    """

    data: ImageData
    settings: LinearSettings = LinearSettings()

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Train and judge the classifier; of the denoiser's data only the folders of files are taken.

        Raises:
            UsageError: a model without features of images, or images without labels.
        """
        model = module.model
        if not isinstance(model, ImageEBT | DiT):
            raise UsageError(f"probes.linear: {type(model).__name__} has no features of images")

        if isinstance(data, ImageData):
            self.data.source.find(data.source.data_root, data.source.cache)

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            size, channels = model.patches.image_size, model.patches.channels
            fitted = _fitted(images.to(module.device), size, channels)
            return model.features(fitted).mean(1).cpu()  # (N, D)

        return Findings(accuracies(features, self.data, self.settings, seed))


class LinearProbeFloor(Task):
    """Measures a linear classifier of raw pixels, or one that reads nothing: the most frequent classes of training.

    Metrics as of ``LinearProbe``.

    Args:
        data: as of ``LinearProbe``.
        rule: "pixels" or "chance".
        settings: see ``LinearSettings``.

    Raises:
        ValueError: an unknown rule.
    """

    def __init__(self, data: ImageData, rule: str = "pixels", settings: LinearSettings = LinearSettings()) -> None:
        self.data, self.rule, self.settings = data, one_of("rule", rule, FLOORS), settings

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(int(cell.config["seed"])) for cell in cells]

    def _outcome(self, seed: int) -> Outcome:
        metrics = accuracies(FLOORS[self.rule], self.data, self.settings, seed)
        return Outcome(FINISHED, metrics=metrics, data_hashes=self.data.data_hashes())


def accuracies(features: Features, data: ImageData, settings: LinearSettings, seed: int) -> dict[str, float]:
    """Train a linear classifier on the training images, and return ``top_1`` and ``top_5`` of those of
    the last split.

    Raises:
        UsageError: the images have no labels.
    """
    if not data.labelled:
        raise UsageError("a linear probe needs labels: give an ImageData with labelled=true")
    (inputs, labels), (tested, expected) = (
        _gathered(features, data, split) for split in (data.splits[0], data.splits[-1])
    )
    mean, std = inputs.mean(0), inputs.std(0).clamp(min=LEAST_STD)  # (D,) each
    inputs, tested = (inputs - mean) / std, (tested - mean) / std
    classifier = _trained(inputs, labels, data.source.num_classes, settings, seed)
    order = classifier(tested).argsort(dim=1, descending=True, stable=True)  # (N, K)
    right = order == expected[:, None]
    return {f"top_{count}": float(right[:, :count].any(1).float().mean()) for count in TOP}


def _gathered(features: Features, data: ImageData, split: str) -> tuple[Tensor, Tensor]:
    """Return the features (N, D) and labels (N,) of a split."""
    parts = [(features(images), labels) for images, labels in data.evaluation_batches(split)]
    return torch.cat([part for part, _ in parts]).float(), torch.cat([labels for _, labels in parts])


@torch.enable_grad()
def _trained(inputs: Tensor, labels: Tensor, classes: int, settings: LinearSettings, seed: int) -> nn.Module:
    """Return the classifier of features (N, D)."""
    classifier = nn.Linear(inputs.shape[1], classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    steps = settings.epochs * -(-len(inputs) // settings.batch_size)
    optimizer = torch.optim.AdamW(classifier.parameters(), settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(mix(seed, "linear probe"))
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(inputs), generator=generator).split(settings.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(classifier(inputs[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return classifier.requires_grad_(False)


def _fitted(images: Tensor, size: int, channels: int) -> Tensor:
    """Return images (N, C, H, H) at another size, with equal channels where there is one.

    Raises:
        UsageError: a size that is neither a multiple nor a fraction, or channels that do not fit.
    """
    side = images.shape[-1]
    if images.shape[1] not in (1, channels):
        raise UsageError(f"images of {images.shape[1]} channels do not fit a model of {channels}")
    if size % side and side % size:
        raise UsageError(f"images of {side} do not fit a model of {size}: one must be a multiple of the other")
    if size >= side:
        images = images.repeat_interleave(size // side, 2).repeat_interleave(size // side, 3)
    else:
        images = functional.avg_pool2d(images, side // size)
    return images.expand(-1, channels, -1, -1)
