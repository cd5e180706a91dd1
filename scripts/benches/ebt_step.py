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
        error = relative_error(split.gradients(), both.gradients())
        yield split.times(f"{case}, split streams, {size}", error, 1 / case.most_time)
        goal = None if case.most_memory is None else 1 / case.most_memory
        yield split.memory(f"{case}, split streams, {size}", goal)
        yield split.products(f"{case}, split streams, {size}")
        yield both.times(f"{case}, concatenated streams, {size}")
        yield both.memory(f"{case}, concatenated streams, {size}")
        yield both.products(f"{case}, concatenated streams, {size}")
        del both
        if case.variant == "default":
            compiled = _pair(size, case, COMPILED, device)
            error = relative_error(compiled.gradients(), split.gradients())
            yield compiled.times(f"{case}, split streams, both compiled, {size}", error)


def _pair(size: Size, case: Case, ways: tuple[str, ...], device: torch.device) -> Pair:
    overrides = {
        "model.variant": case.variant,
        "model.num_landscapes": 1 if case.variant == "default" else case.steps,
        "module.thinking.num_steps": case.steps,
        "model.width": size.width,
        "model.num_heads": size.heads,
        "model.num_layers": size.layers,
        "model.vocabulary_size": size.vocabulary,
        "data.window": size.window,
        "step.batch_size": size.batch,
        "model.step_size": size.step_size,
    }
    words = [f"{key}={value}" for key, value in overrides.items()]
    config: dict[str, Any] = compose("ebt/stepcost", ["model=ebt/s1", *words, *ways], seed=0)
    step, models = StepSettings(**config["step"]), each_model(config)

    def build(on: torch.device) -> tuple[Stepper, Stepper]:
        ours, theirs = (build_stepper(*models[name], step, on) for name in ("own", "baseline"))
        return ours, theirs

    return Pair(build, "Transformer++", device)
