"""A training step of EBT on noised images against one of DiT of its sizes: time, memory, and matrix products.

The products say how much longer a step has to take at the least.  The two models have no result in common: the relative
error is that of EBT's gradients by the ops for this device, against those by the definitions.  A last line holds the
loading of a batch against EBT's step.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, interleaved, relative_error
from torch import Tensor

from paper_repro.base.configs import compose
from paper_repro.datamodules.image_sources import Photographs
from paper_repro.datamodules.images import ImageData
from paper_repro.kernels.preferences import prefer
from paper_repro.training.counting import count_flops
from paper_repro.training.step_cost import added_memory
from paper_repro.training.step_time import BATCHES, Stepper, StepSettings, build_stepper

MIB = 2**20
STEP: dict[str, Any] = {"accumulate": 1, "clip_norm": 1.0, "precision": "32-true", "rounds": 1, "unmeasured_rounds": 1}


class Size(NamedTuple):
    """What is trained: D, heads, layers, side of an image and of a patch, images of a batch."""

    width: int
    heads: int
    layers: int
    side: int
    patch: int
    batch: int

    def __str__(self) -> str:
        return f"D={self.width}, {self.layers} layers, {self.batch} images of {self.side}, patches of {self.patch}"

    def overrides(self) -> list[str]:
        return [
            f"model.width={self.width}",
            f"model.num_heads={self.heads}",
            f"model.num_layers={self.layers}",
            f"model.image_size={self.side}",
            f"model.patch={self.patch}",
        ]


ON_CPU, ON_GPU = Size(384, 6, 6, 32, 4, 16), Size(1536, 16, 24, 128, 16, 64)
INNER_STEPS = (1, 2)


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare EBT of one and two steps with DiT, then the loading of images with EBT's step."""
    size = ON_CPU if device.type == "cpu" else ON_GPU
    for count in INNER_STEPS:
        for compiled in (False, True):
            yield from _Pair(size, count, compiled, device).comparisons()
    yield _loading(size, device)


class _Pair:
    """An EBT and a DiT of its sizes, with their optimisers."""

    def __init__(self, size: Size, count: int, compiled: bool, device: torch.device) -> None:
        self.size, self.count, self.compiled, self.device = size, count, compiled, device
        self.ours, self.theirs = self.built(device)

    def built(self, device: torch.device) -> tuple[Stepper, Stepper]:
        ours = [f"module.thinking.num_steps={self.count}", "model.step_size=100.0"]
        return self._stepper("ebt/image_ebt", ours, device), self._stepper("ebt/dit", [], device)

    def comparisons(self) -> Iterator[Comparison]:
        with prefer("auto"):
            ours, theirs = interleaved(self.ours.step, self.theirs.step, 1, self.device)
        yield self._comparison("ms per step", ours, theirs, relative_error(self._gradients("auto"), self._gradients()))
        if self.compiled:
            return
        with prefer("auto"):
            ours, theirs = ([added_memory(own, self.device) / MIB] for own in (self.ours, self.theirs))
        yield self._comparison("MiB that a step adds", ours, theirs)
        with prefer("reference"):
            counted = [count_flops(own.gradients) / 1e9 for own in self.built(torch.device("meta"))]
        yield self._comparison("GFLOPs of matrix products per step", counted[:1], counted[1:])

    def _stepper(self, model: str, more: list[str], device: torch.device) -> Stepper:
        config: dict[str, Any] = compose("ebt/denoising", [f"model={model}", *self.size.overrides(), *more], seed=0)
        step = StepSettings(**STEP, window=1, batch_size=self.size.batch, compile=self.compiled)
        shape = (BATCHES, self.size.batch, 3, self.size.side, self.size.side)
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device) * 2 - 1
        return build_stepper(config["model"], config, step, device, cycle(images))

    def _gradients(self, ops: str = "reference") -> list[Tensor]:
        """Return EBT's gradients of a first batch, and forget them."""
        fresh, _ = self.built(self.device)
        with prefer(ops):
            fresh.gradients()
        return [parameter.grad for parameter in fresh.parameters if parameter.grad is not None]

    def _comparison(self, unit: str, ours: list[float], theirs: list[float], error: float = 0.0) -> Comparison:
        ways = ", both compiled" if self.compiled else ""
        case = f"EBT, {self.count} step{'s' if self.count > 1 else ''}{ways}, {self.size}"
        return Comparison(case, unit, ours, theirs, "DiT", error)


def _loading(size: Size, device: torch.device) -> Comparison:
    """Compare the time in which one process loads a batch with that of EBT's step."""
    data, pair = ImageData(Photographs(size.side, 2), batch_size=size.batch), _Pair(size, 1, False, device)
    drawn = iter(range(2**20))
    with prefer("auto"):
        ours, theirs = interleaved(lambda: data.train_batch(next(drawn)), pair.ours.step, 1, device)
    case = f"loading squares of photographs, {size.batch} images of {size.side}"
    return Comparison(case, "ms per batch", ours, theirs, "a step of EBT", 0.0)
