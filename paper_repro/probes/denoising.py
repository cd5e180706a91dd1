"""EBT, table 4, figures 8 and B.6: noised images over forward passes, by an energy and by diffusion, and a linear
classifier on the features of a denoiser that stays as it is.

Letters: B images, C channels, H image side; N labelled images, D features, K classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.errors import UsageError, one_of
from paper_repro.base.identity import mix
from paper_repro.cells.tasks import FINISHED, Cell, Findings, Outcome, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.images import ImageData
from paper_repro.metrics.pooled import computed_errors, new_errors, update_errors
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import ThinkingSettings
from paper_repro.models.ebt_image import DiT, ImageEBT, denoised
from paper_repro.probes.attachments import png
from paper_repro.probes.thinking import settings_of
from paper_repro.training.module import PaperModule

LEVELS: Mapping[str, int] = {"in": 99, "out": 199}
"""Times of the noise: that of training, and a higher one, which EBT's code takes and the paper does not give."""

NUM_SHOWN = 8
"""Images of a strip."""


def plain_images(data: CounterBasedDataModule) -> ImageData:
    """Return the data; raise UsageError if they are others than images without masks and labels."""
    if type(data) is not ImageData or data.labelled:
        raise UsageError(f"denoising takes plain images, ImageData without labels, the data are {type(data).__name__}")
    return data


def noised_batches(data: ImageData, time: int, split: str | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the evaluated images of a split (None: the last), (B, C, H, H) in [-1, 1], and the same with noise, which
    follows from ``data.evaluation_seed`` and the time.
    """
    split = data.splits[-1] if split is None else split
    signal, std = diffusion.signal(time), diffusion.noise_std(time)
    count = 0
    for images in data.evaluation_batches(split):
        # Drawn for each image by itself: the noise then does not depend on the size of a batch.
        seeds = [mix(data.evaluation_seed, "denoising", split, time, count + row) for row in range(len(images))]
        drawn = [torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        yield images, signal * images + std * torch.stack(drawn)
        count += len(images)


class Way(NamedTuple):
    """How a noised image is denoised."""

    steps: int  # steps of a pass; 0: one at each time, down from that of the noise (diffusion alone)
    passes: int

    def evaluations(self, time: int) -> int:
        """Return how often the network is evaluated at noise of a time."""
        return (self.steps or time + 1) * self.passes


@dataclass(frozen=True)
class Denoising:
    """Measures what is found in the test images at several levels of noise, over numbers of forward passes.

    One pass of EBT is the descent of training; one of diffusion is DDIM at each time, down from that of the noise; a
    further pass begins at what the one before found.  Metrics, for each level:

    * ``<level>_psnr``, ``<level>_image_psnr``, ``<level>_mse``: after the level's number of ``passes``;
      ``<level>_nfe``: evaluations of the network for it.
    * for diffusion ``<level>_psnr_equal`` and ``<level>_psnr_double``: DDIM with as many evaluations as EBT takes for
      the level's passes of one step, and with twice as many.  A step of EBT is a forward and a backward pass, so twice
      as many cost about the same.

    ``denoising.csv`` has each number of steps and passes, for EBT with the mean energy.  Strips of the first
    images: ``original.png``, ``<level>_noised.png``, ``<level>_found.png``.

    Args:
        levels: names and times of the noise.
        passes: of each level, for the metrics and the strips.
        most_passes: the file has 1 ... ``most_passes``.
        steps: of DDIM, one pass each, for the file; those above a level's t + 1 are left out.
    """

    levels: Mapping[str, int] = field(default_factory=lambda: dict(LEVELS))
    passes: Mapping[str, int] = field(default_factory=lambda: {"in": 1, "out": 3})
    most_passes: int = 4
    steps: Sequence[int] = (1, 2, 3, 4, 6, 10, 25, 50)

    def __post_init__(self) -> None:
        for time in self.levels.values():
            diffusion.check_time(time)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model, images = module.model, plain_images(data)
        if not isinstance(model, ImageEBT | DiT):
            raise UsageError(f"probes.denoising: {type(model).__name__} does not denoise images")
        settings = settings_of(module) if isinstance(model, ImageEBT) else None
        found, rows = Findings(), ["level,steps,passes,nfe,psnr,image_psnr,mse,energy"]
        for level, time in self.levels.items():
            chosen = Way(settings.longest if settings else 0, self.passes[level])
            ways = self._ways(chosen.steps, level)
            errors, energies, count = {way: new_errors() for way in ways}, dict.fromkeys(ways, 0.0), 0
            for batch, noised in noised_batches(images, time):
                if not count:
                    found.attachments["original.png"] = png(batch[:NUM_SHOWN])
                    found.attachments[f"{level}_noised.png"] = png(noised[:NUM_SHOWN])
                for way, denoised_images, energy in _found(model, settings, noised.to(module.device), time, ways):
                    update_errors(errors[way], denoised_images.cpu(), batch)
                    energies[way] += float(energy.sum())
                    if way == chosen and not count:
                        found.attachments[f"{level}_found.png"] = png(denoised_images[:NUM_SHOWN])
                count += len(noised)
            computed = {way: computed_errors(own) for way, own in errors.items()}
            for way, numbers in computed.items():
                cells = (level, way.steps or time + 1, way.passes, way.evaluations(time))
                last = f"{energies[way] / count:.8g}" if settings else ""
                rows.append(",".join([*map(str, cells), *(f"{number:.8g}" for number in numbers.values()), last]))
            found.metrics |= {f"{level}_{kind}": value for kind, value in computed[chosen].items()}
            found.metrics[f"{level}_nfe"] = float(chosen.evaluations(time))
            if not settings:
                for name, factor in (("equal", 1), ("double", 2)):
                    found.metrics[f"{level}_psnr_{name}"] = computed[self._short(level, factor)]["psnr"]
        found.attachments["denoising.csv"] = ("\n".join(rows) + "\n").encode()
        return found

    def _ways(self, steps: int, level: str) -> list[Way]:
        """Return how a level's images are denoised; 0 steps stand for diffusion."""
        most = max(self.most_passes, self.passes[level])
        ways = [Way(steps, passes) for passes in range(1, most + 1)]
        if not steps:
            ways += [Way(count, 1) for count in self.steps if count <= self.levels[level] + 1]
            ways += [self._short(level, factor) for factor in (1, 2)]
        return list(dict.fromkeys(ways))

    def _short(self, level: str, factor: int) -> Way:
        """Return one pass of DDIM with ``factor`` times as many steps as the level has passes."""
        return Way(min(factor * self.passes[level], self.levels[level] + 1), 1)


def _found(
    model: ImageEBT | DiT, settings: ThinkingSettings | None, noised: Tensor, time: int, ways: Sequence[Way]
) -> Iterator[tuple[Way, Tensor, Tensor]]:
    """Yield what each way finds in images (B, C, H, H), and its energies, (B,), zeros where there are none."""
    if isinstance(model, ImageEBT):
        ends = {way.steps * way.passes: way for way in ways}
        for index, (images, energies) in enumerate(denoised(model, noised, max(ends), settings)):
            if index in ends:
                yield ends[index], images, energies
        return
    none = torch.zeros(len(noised))
    with torch.no_grad():
        for count in dict.fromkeys(way.steps for way in ways):
            own = [way for way in ways if way.steps == count]
            ends = {way.evaluations(time): way for way in own}
            each = diffusion.ddim(model, noised, time, count or None, max(way.passes for way in own))
            for index, images in enumerate(each, 1):
                if index in ends:
                    yield ends[index], images, none


# Linear classifiers.


Features = Callable[[Tensor], Tensor]
"""Numbers (N, D) of images (N, C, H, H) in [-1, 1]."""
FLOORS: dict[str, Features] = {
    "pixels": lambda images: images.flatten(1),
    "chance": lambda images: torch.zeros(len(images), 1),
}  # features that need no model


EPOCHS, BATCH_SIZE, RATE, WEIGHT_DECAY = 50, 256, 0.01, 0.01
"""The classifier is trained by AdamW on the cross-entropy, features scaled to mean 0 and variance 1 (ours)."""


@dataclass(frozen=True)
class LinearProbe:
    """Trains a linear classifier of labelled images on the features of the module's model, which is not changed.

    The features are the mean over patches of the last block's states (EBT, D.3).  Images are brought to the model's
    size, each pixel repeated or the mean of several, and grey ones to three equal channels.  Metrics: shares between 0
    and 1 of the images of the last split, ``top_1`` and ``top_5``.

    Args:
        data: the section of the labelled images, an ImageData with ``labelled: true``; of each split at most its
            ``num_evaluation_images`` are taken.
    """

    data: ImageData

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        model = module.model
        if not isinstance(model, ImageEBT | DiT):
            raise UsageError(f"probes.linear: {type(model).__name__} has no features of images")
        if isinstance(data, ImageData):  # for the folders of files alone
            self.data.source.find(data.source.data_root, data.source.cache)

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            size, channels = model.patches.image_size, model.patches.channels
            fitted = _fitted(images.to(module.device), size, channels)
            return model.features(fitted).mean(1).cpu()  # (N, D)

        return Findings(accuracies(features, self.data, seed))


class LinearProbeFloor(Task):
    """Measures a linear classifier of raw pixels, or one that reads nothing: the most frequent classes of training.

    Metrics as of ``LinearProbe``.

    Args:
        data: as of ``LinearProbe``.
        rule: "pixels" or "chance".
    """

    def __init__(self, data: ImageData, rule: str = "pixels") -> None:
        self.data, self.rule = data, one_of("rule", rule, FLOORS)

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        metrics = accuracies(FLOORS[self.rule], self.data, int(cell.config["seed"]))
        return Outcome(FINISHED, metrics=metrics, data_hashes=self.data.data_hashes())


@torch.enable_grad()
def accuracies(features: Features, data: ImageData, seed: int) -> dict[str, float]:
    """Train a linear classifier on the training images, and return ``top_1`` and ``top_5`` of the last split."""
    if not data.labelled:
        raise UsageError("a linear probe needs labels: give an ImageData with labelled=true")

    def gathered(split: str) -> tuple[Tensor, Tensor]:
        parts = [(features(images), labels) for images, labels in data.evaluation_batches(split)]
        return torch.cat([part for part, _ in parts]).float(), torch.cat([labels for _, labels in parts])

    (inputs, labels), (tested, expected) = gathered(data.splits[0]), gathered(data.splits[-1])  # (N, D) and (N,)
    mean, std = inputs.mean(0), inputs.std(0).clamp(min=1e-6)  # (D,) each
    inputs, tested = (inputs - mean) / std, (tested - mean) / std
    classifier = nn.Linear(inputs.shape[1], data.source.num_classes)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.AdamW(classifier.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * -(-len(inputs) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(mix(seed, "linear probe"))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs), generator=generator).split(BATCH_SIZE):
            optimizer.zero_grad()
            functional.cross_entropy(classifier(inputs[rows]), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    order = classifier(tested).argsort(dim=1, descending=True, stable=True)  # (N, K)
    right = order == expected[:, None]
    return {f"top_{count}": float(right[:, :count].any(1).float().mean()) for count in (1, 5)}


def _fitted(images: Tensor, size: int, channels: int) -> Tensor:
    """Return images (N, C, H, H) at another size, with equal channels where there is one."""
    side = images.shape[-1]
    if images.shape[1] not in (1, channels):
        raise UsageError(f"images of {images.shape[1]} channels do not fit a model of {channels}")
    if size % side and side % size:
        raise UsageError(f"images of {side} do not fit a model of {size}: one must be a multiple of the other")
    images = functional.interpolate(images, (size, size), mode="area")  # repeats pixels where it enlarges
    return images.expand(-1, channels, -1, -1)
