"""A training step of EBT on noised images against one of DiT of its sizes: time, memory, and matrix products.

The products say how much longer a step has to take at the least.  The two models have no result in common: the relative
error is that of EBT's gradients by the ops for this device, against those by the definitions.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, Pair, relative_error

from paper_repro.base.configs import compose
from paper_repro.training.step_time import BATCHES, Stepper, StepSettings, build_stepper

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


ON_CPU, ON_GPU = Size(384, 6, 6, 32, 4, 16), Size(1536, 16, 24, 128, 16, 64)
INNER_STEPS = (1, 2)


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare EBT of one and two steps with DiT."""
    size = ON_CPU if device.type == "cpu" else ON_GPU
    for count in INNER_STEPS:
        for compiled in (False, True):
            yield from _comparisons(size, count, compiled, device)


def _comparisons(size: Size, count: int, compiled: bool, device: torch.device) -> Iterator[Comparison]:
    pair = _pair(size, count, compiled, device)
    case = f"EBT, {count} step{'s' if count > 1 else ''}{', both compiled' if compiled else ''}, {size}"
    error = relative_error(pair.gradients(), pair.gradients("reference"))
    yield from [pair.times(case, error)] if compiled else pair.rows(case, error)


def _pair(size: Size, count: int, compiled: bool, device: torch.device) -> Pair:
    keys = ("width", "num_heads", "num_layers", "image_size", "patch")
    overrides = [f"model.{key}={value}" for key, value in zip(keys, size, strict=False)]
    thinking = [f"module.thinking.num_steps={count}", "model.step_size=100.0"]
    step = StepSettings(**STEP, window=1, batch_size=size.batch, compile=compiled)
    shape = (BATCHES, size.batch, 3, size.side, size.side)

    def stepper(model: str, more: list[str], on: torch.device) -> Stepper:
        config: dict[str, Any] = compose("ebt/denoising", [f"model={model}", *overrides, *more], seed=0)
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(on) * 2 - 1
        return build_stepper(config["model"], config, step, on, cycle(images))

    return Pair(lambda on: (stepper("ebt/image_ebt", thinking, on), stepper("ebt/dit", [], on)), "DiT", device)
