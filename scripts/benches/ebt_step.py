"""A training step of EBT against one of Transformer++: time, memory, and the matrix products that both need.

The steps are those of the artifact ebt/tableD5.  The two models have no result in common: the relative error is that of
EBT's gradients by the streams of the row, against those by concatenated streams, the published form.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, Pair, relative_error

from paper_repro.base.configs import compose
from paper_repro.training.step_time import Stepper, StepSettings, build_stepper, each_model

CONCATENATED = ("+model.streams=concatenated",)
COMPILED = ("step.compile=true",)
KEYS = "model.width model.num_heads model.num_layers model.vocabulary_size data.window step.batch_size model.step_size"


class Size(NamedTuple):
    """What is trained: D, H, L, V, T, B, and the first step size, which goes with V."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    window: int
    batch: int
    step_size: float

    def __str__(self) -> str:
        sizes = f"D={self.width}, {self.layers} layers, V={self.vocabulary}"
        return f"{sizes}, {self.batch} sequences of {self.window}"


class Case(NamedTuple):
    """An EBT, and how much longer its step may take, and how much more memory, than Transformer++'s."""

    variant: str
    steps: int
    most_time: float
    most_memory: float | None = None

    def __str__(self) -> str:
        return f"EBT {self.variant}, {self.steps} step{'s' if self.steps > 1 else ''}"


ON_CPU, ON_GPU = Size(384, 6, 6, 2048, 128, 4, 5.0), Size(384, 6, 6, 50277, 256, 32, 500.0)
CASES = (
    Case("default", 1, 3.2, 4.3),
    Case("default", 2, 5.5, 6.7),
    Case("time_embed", 1, 3.5),
    Case("time_embed", 2, 6.5),
)


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare EBT at XXS, in both forms of its streams and compiled, with Transformer++."""
    size = ON_CPU if device.type == "cpu" else ON_GPU
    for case in CASES:
        split, both = (_pair(size, case, ways, device) for ways in ((), CONCATENATED))
        error, memory = relative_error(split.gradients(), both.gradients()), case.most_memory and 1 / case.most_memory
        yield from split.rows(f"{case}, split streams, {size}", error, 1 / case.most_time, memory)
        yield from both.rows(f"{case}, concatenated streams, {size}")
        del both
        if case.variant == "default":
            compiled = _pair(size, case, COMPILED, device)
            error = relative_error(compiled.gradients(), split.gradients())
            yield compiled.times(f"{case}, split streams, both compiled, {size}", error)


def _pair(size: Size, case: Case, ways: tuple[str, ...], device: torch.device) -> Pair:
    words = [f"{key}={value}" for key, value in zip(KEYS.split(), size, strict=True)]
    words += [f"model.variant={case.variant}", f"module.thinking.num_steps={case.steps}"]
    words.append(f"model.num_landscapes={1 if case.variant == 'default' else case.steps}")
    config: dict[str, Any] = compose("ebt/stepcost", ["model=ebt/s1", *words, *ways], seed=0)
    step, models = StepSettings(**config["step"]), each_model(config)

    def build(on: torch.device) -> tuple[Stepper, Stepper]:
        ours, theirs = (build_stepper(*models[name], step, on) for name in ("own", "baseline"))
        return ours, theirs

    return Pair(build, "Transformer++", device)
