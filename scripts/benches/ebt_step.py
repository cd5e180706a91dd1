"""A training step of EBT against one of Transformer++: time, memory, and the matrix products that both need.

The steps are those of the artifact ebt/tableD5.  The two models have no result in common: the relative error is that of
EBT's gradients by the streams of the row, against those by concatenated streams, the published form.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, interleaved, relative_error
from torch import Tensor

from paper_repro.base.configs import compose
from paper_repro.kernels.preferences import prefer
from paper_repro.training.counting import count_flops
from paper_repro.training.step_cost import added_memory
from paper_repro.training.step_time import Stepper, StepSettings, build_stepper, each_model

CONCATENATED = ("+model.streams=concatenated",)
COMPILED = ("step.compile=true",)
MIB = 2**20


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

    def overrides(self) -> list[str]:
        return [
            f"model.width={self.width}",
            f"model.num_heads={self.heads}",
            f"model.num_layers={self.layers}",
            f"model.vocabulary_size={self.vocabulary}",
            f"data.window={self.window}",
            f"step.batch_size={self.batch}",
            f"model.step_size={self.step_size}",
        ]


class Case(NamedTuple):
    """An EBT, and how much longer its step may take, and how much more memory, than Transformer++'s."""

    variant: str
    steps: int
    most_time: float
    most_memory: float | None = None

    def overrides(self) -> list[str]:
        landscapes = 1 if self.variant == "default" else self.steps
        return [
            f"model.variant={self.variant}",
            f"model.num_landscapes={landscapes}",
            f"module.thinking.num_steps={self.steps}",
        ]

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
        split, both = (_Pair(size, case, ways, device) for ways in ((), CONCATENATED))
        error = relative_error(split.gradients(), both.gradients())
        yield split.times("split streams", error, 1 / case.most_time)
        yield split.memory("split streams", None if case.most_memory is None else 1 / case.most_memory)
        yield split.products("split streams")
        yield both.times("concatenated streams", 0.0)
        yield both.memory("concatenated streams")
        yield both.products("concatenated streams")
        del both
        if case.variant == "default":
            compiled = _Pair(size, case, COMPILED, device)
            yield compiled.times(
                "split streams, both compiled", relative_error(compiled.gradients(), split.gradients())
            )


class _Pair:
    """An EBT and a Transformer++ of its sizes, with their optimisers."""

    def __init__(self, size: Size, case: Case, ways: tuple[str, ...], device: torch.device) -> None:
        self.size, self.case, self.device = size, case, device
        self.config: dict[str, Any] = compose(
            "ebt/stepcost", ["model=ebt/s1", *case.overrides(), *size.overrides(), *ways], seed=0
        )
        self.ours, self.theirs = self._built(device)

    def times(self, ways: str, error: float, goal: float | None = None) -> Comparison:
        with prefer("auto"):
            ours, theirs = interleaved(self.ours.step, self.theirs.step, 1, self.device)
        return self._comparison(ways, "ms per step", ours, theirs, error, goal)

    def memory(self, ways: str, goal: float | None = None) -> Comparison:
        with prefer("auto"):
            ours, theirs = ([added_memory(own, self.device) / MIB] for own in (self.ours, self.theirs))
        return self._comparison(ways, "MiB that a step adds", ours, theirs, 0.0, goal)

    def products(self, ways: str) -> Comparison:
        with prefer("reference"):
            ours, theirs = ([count_flops(own.gradients) / 1e9] for own in self._built(torch.device("meta")))
        return self._comparison(ways, "GFLOPs of matrix products per step", ours, theirs, 0.0)

    def gradients(self) -> list[Tensor]:
        """Return EBT's gradients of a first batch, and forget them."""
        fresh, _ = self._built(self.device)
        with prefer("auto"):
            fresh.gradients()
        return [parameter.grad for parameter in fresh.parameters if parameter.grad is not None]

    def _built(self, device: torch.device) -> tuple[Stepper, Stepper]:
        step, models = StepSettings(**self.config["step"]), each_model(self.config)
        ours, theirs = (build_stepper(*models[name], step, device) for name in ("own", "baseline"))
        return ours, theirs

    def _comparison(
        self, ways: str, unit: str, ours: list[float], theirs: list[float], error: float, goal: float | None = None
    ) -> Comparison:
        return Comparison(f"{self.case}, {ways}, {self.size}", unit, ours, theirs, "Transformer++", error, goal)
