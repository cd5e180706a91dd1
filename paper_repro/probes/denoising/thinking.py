"""EBT, table 4, figures 8 and B.6: noised images over forward passes, by an energy and by diffusion.

Letters: B images, C channels, H image side.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paper_repro.base.arguments import at_least
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.images import ImageData
from paper_repro.lightning_modules.ebt_denoising import DiffusionDenoising, EBTDenoising
from paper_repro.models import diffusion
from paper_repro.probes.denoising.scores import KINDS, LEVELS, Scores, noised_batches, plain_images
from paper_repro.probes.pictures import png
from paper_repro.training.module import PaperModule

ATTACHMENT = "denoising.csv"
ORIGINAL = "original.png"


class Way(NamedTuple):
    """How a noised image is denoised."""

    steps: int
    """Of a pass; 0: one at each time, down from that of the noise (diffusion alone)."""
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
            UsageError: a module that does not denoise, or data other than plain images.
        """
        if not isinstance(module, EBTDenoising | DiffusionDenoising):
            raise UsageError(f"probes.denoising: {type(module).__name__} does not denoise images")
        images = plain_images(data)
        found, rows = Findings(), ["level,steps,passes,nfe,psnr,image_psnr,mse,energy"]
        for level, time in self.levels.items():
            self._measure_level(found, rows, module, images, level, time)
        found.attachments[ATTACHMENT] = ("\n".join(rows) + "\n").encode()
        return found

    def _measure_level(
        self,
        found: Findings,
        rows: list[str],
        module: EBTDenoising | DiffusionDenoising,
        data: ImageData,
        level: str,
        time: int,
    ) -> None:
        ways = self._ways(module, level, time)
        scores, energies = {way: Scores() for way in ways}, dict.fromkeys(ways, 0.0)
        chosen, count = self._chosen(module, level), 0
        for batch in noised_batches(data, time):
            noised = batch.noised.to(module.device)
            if not count:
                some = slice(0, self.shown)
                found.attachments[ORIGINAL] = png(batch.images[some])
                found.attachments[f"{level}_noised.png"] = png(batch.noised[some])
            for way, (denoised, energy) in _found(module, noised, time, ways):
                scores[way].update(denoised, batch.images)
                energies[way] += float(energy.sum())
                if way == chosen and not count:
                    found.attachments[f"{level}_found.png"] = png(denoised[: self.shown])
            count += len(noised)
        computed = {way: own.compute() for way, own in scores.items()}
        for way, numbers in computed.items():
            last = f"{energies[way] / count:.8g}" if isinstance(module, EBTDenoising) else ""
            cells = (level, way.steps or time + 1, way.passes, way.evaluations(time))
            rows.append(",".join([*map(str, cells), *(f"{numbers[kind]:.8g}" for kind in KINDS), last]))
        found.metrics |= {f"{level}_{kind}": value for kind, value in computed[chosen].items()}
        found.metrics[f"{level}_nfe"] = float(chosen.evaluations(time))
        if isinstance(module, DiffusionDenoising):
            for name, factor in (("equal", 1), ("double", 2)):
                found.metrics[f"{level}_psnr_{name}"] = computed[self._short(level, time, factor)]["psnr"]

    def _chosen(self, module: PaperModule, level: str) -> Way:
        steps = module.thinking.longest if isinstance(module, EBTDenoising) else 0
        return Way(steps, self.passes[level])

    def _short(self, level: str, time: int, factor: int) -> Way:
        """Return one pass of DDIM with ``factor`` times as many steps as the level has passes."""
        return Way(min(factor * self.passes[level], time + 1), 1)

    def _ways(self, module: PaperModule, level: str, time: int) -> list[Way]:
        most = max(self.most_passes, self.passes[level])
        ways = [Way(self._chosen(module, level).steps, passes) for passes in range(1, most + 1)]
        if isinstance(module, DiffusionDenoising):
            short = [Way(steps, 1) for steps in self.steps if steps <= time + 1]
            ways += [*short, *(self._short(level, time, factor) for factor in (1, 2))]
        return list(dict.fromkeys(ways))


def _found(
    module: EBTDenoising | DiffusionDenoising, noised: Tensor, time: int, ways: Sequence[Way]
) -> Iterator[tuple[Way, tuple[Tensor, Tensor]]]:
    """Yield what each way finds in images (B, C, H, H), with its energies, (B,), zeros where there are none."""
    none = torch.zeros(len(noised))
    if isinstance(module, EBTDenoising):
        length = module.thinking.longest
        ends = {way.steps * way.passes: way for way in ways}
        for index, state in enumerate(module.denoised(noised, max(ends))):
            if index in ends and index % length == 0:
                yield ends[index], state
        return
    longest: dict[int, list[Way]] = {}
    for way in ways:
        longest.setdefault(way.steps, []).append(way)
    with torch.no_grad():
        for steps, own in longest.items():
            each, last = steps or time + 1, max(way.passes for way in own)
            ends = {way.passes * each: way for way in own}
            for index, image in enumerate(diffusion.ddim(module.model, noised, time, each, last), 1):
                if index in ends:
                    yield ends[index], (image, none)
