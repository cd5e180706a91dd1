"""EBT, table 4, figures 8 and B.6: noised images over forward passes, by an energy and by diffusion.

Letters: B images, C channels, H image side.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.images import ImageData
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import ThinkingSettings
from paper_repro.models.ebt_image import DiT, ImageEBT, denoised
from paper_repro.probes.denoising.scores import LEVELS, Scores, noised_batches, plain_images
from paper_repro.probes.pictures import png
from paper_repro.probes.thinking import settings_of
from paper_repro.training.module import PaperModule

ATTACHMENT = "denoising.csv"
ORIGINAL = "original.png"


class Denoiser(NamedTuple):
    """A model, and how it descends in a pass; None: it diffuses."""

    model: ImageEBT | DiT
    thinking: ThinkingSettings | None


class Way(NamedTuple):
    """How a noised image is denoised."""

    steps: int
    """Steps of a pass; 0: one at each time, down from that of the noise (diffusion alone)."""
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

    ``denoising.csv`` has each number of steps and passes, for EBT with the mean energy.  Strips of the first ``shown``
    images: ``original.png``, ``<level>_noised.png``, ``<level>_found.png``.

    Args:
        levels: names and times of the noise.
        passes: of each level, for the metrics and the strips.
        most_passes: the file has 1 ... ``most_passes``.
        steps: of DDIM, one pass each, for the file; those above a level's t + 1 are left out.
        shown: images of a strip.

    Raises:
        ValueError: levels and passes that do not fit, a time outside the schedule, or a number below 1.
    """

    levels: Mapping[str, int] = field(default_factory=lambda: dict(LEVELS))
    passes: Mapping[str, int] = field(default_factory=lambda: {"in": 1, "out": 3})
    most_passes: int = 4
    steps: Sequence[int] = (1, 2, 3, 4, 6, 10, 25, 50)
    shown: int = 8

    def __post_init__(self) -> None:
        if not self.levels or set(self.levels) != set(self.passes):
            raise ValueError(f"levels and passes must have the same names, got {[*self.levels]} and {[*self.passes]}")
        for time in self.levels.values():
            diffusion.check_time(time)
        at_least("most_passes", self.most_passes)
        at_least("shown", self.shown)
        for name, numbers in (("passes", self.passes.values()), ("steps", self.steps)):
            for number in numbers:
                at_least(name, number)

    def measure(self, module: PaperModule, data: CounterBasedDataModule, seed: int) -> Findings:
        """Denoise the images, which are the same for every model and seed.

        Raises:
            UsageError: a model that does not denoise, or data other than plain images.
        """
        model, images = module.model, plain_images(data)
        if not isinstance(model, ImageEBT | DiT):
            raise UsageError(f"probes.denoising: {type(model).__name__} does not denoise images")
        settings = settings_of(module) if isinstance(model, ImageEBT) else None
        found, rows = Findings(), ["level,steps,passes,nfe,psnr,image_psnr,mse,energy"]
        for level in self.levels:
            self._measure_level(found, rows, Denoiser(model, settings), images, level)
        found.attachments[ATTACHMENT] = ("\n".join(rows) + "\n").encode()
        return found

    def _measure_level(self, found: Findings, rows: list[str], by: Denoiser, data: ImageData, level: str) -> None:
        time, steps = self.levels[level], by.thinking.longest if by.thinking else 0
        chosen = Way(steps, self.passes[level])
        ways = self._ways(steps, level)
        scores, energies, count = {way: Scores() for way in ways}, dict.fromkeys(ways, 0.0), 0
        for batch in noised_batches(data, time):
            if not count:
                found.attachments[ORIGINAL] = png(batch.images[: self.shown])
                found.attachments[f"{level}_noised.png"] = png(batch.noised[: self.shown])
            noised = batch.noised.to(next(by.model.parameters()).device)
            for way, denoised_images, energy in _found(by, noised, time, ways):
                scores[way].update(denoised_images, batch.images)
                energies[way] += float(energy.sum())
                if way == chosen and not count:
                    found.attachments[f"{level}_found.png"] = png(denoised_images[: self.shown])
            count += len(noised)
        computed = {way: own.compute() for way, own in scores.items()}
        for way, numbers in computed.items():
            cells = (level, way.steps or time + 1, way.passes, way.evaluations(time))
            last = f"{energies[way] / count:.8g}" if by.thinking else ""
            rows.append(",".join([*map(str, cells), *(f"{number:.8g}" for number in numbers.values()), last]))
        found.metrics |= {f"{level}_{kind}": value for kind, value in computed[chosen].items()}
        found.metrics[f"{level}_nfe"] = float(chosen.evaluations(time))
        if not by.thinking:
            for name, factor in (("equal", 1), ("double", 2)):
                found.metrics[f"{level}_psnr_{name}"] = computed[self._short(level, factor)]["psnr"]

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


def _found(by: Denoiser, noised: Tensor, time: int, ways: Sequence[Way]) -> Iterator[tuple[Way, Tensor, Tensor]]:
    """Yield what each way finds in images (B, C, H, H), and its energies, (B,), zeros where there are none."""
    model, settings = by
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
