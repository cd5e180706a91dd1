"""A training step of nGPT against one of GPT, and what fused operations and torch.compile make of it.

The steps are those of the artifact ngpt/steptime.  Where two models are compared they have no result in common: the
relative error is that of nGPT's gradients by the operations of the row, against those by the definitions.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, relative_error, timed
from torch import Tensor

from paper_repro.base.configs import compose
from paper_repro.kernels.preferences import prefer
from paper_repro.training.step_time import Stepper, StepSettings, build_stepper

PLAIN = ("machine.implementation=reference", "optimizer._target_=torch.optim.AdamW")
KEYS = "size.width size.num_heads size.num_layers size.vocabulary_size step.window step.batch_size step.precision"
WAYS = {
    "fused": ("machine.implementation=auto",),
    "not fused": PLAIN,
    "torch.compile": (*PLAIN, "step.compile=true"),
}


class Size(NamedTuple):
    """What is trained: D, H, L, V, T and B; the arithmetic; and how much longer nGPT's fused step may take."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    window: int
    batch: int
    precision: str
    most: float

    def overrides(self) -> list[str]:
        return ["step.accumulate=1", *(f"{key}={value}" for key, value in zip(KEYS.split(), self, strict=False))]


ON_CPU = (Size(256, 4, 4, 2048, 1024, 2, "32-true", 1.15), Size(512, 8, 4, 2048, 1024, 2, "32-true", 1.15))
ON_GPU = (Size(1024, 16, 24, 32000, 4096, 4, "bf16-mixed", 1.05),)


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare two small models on a CPU; the paper's 0.5B at 4k context on a GPU."""
    cpu = device.type == "cpu"
    pairs = [("fused", "gpt", "fused"), ("not fused", "gpt", "not fused"), ("fused", "ngpt", "not fused")]
    if not cpu:
        pairs += [("torch.compile", "gpt", "torch.compile"), ("fused", "ngpt", "torch.compile")]
    for size in ON_CPU if cpu else ON_GPU:
        exact, errors = _gradients(size, PLAIN, device), dict[str, float]()
        for way, other, other_way in pairs:
            if way not in errors:
                errors[way] = relative_error(_gradients(size, WAYS[way], device), exact)
            fused = way == other_way == "fused"
            run = size if cpu or fused else size._replace(batch=size.batch // 2)  # for two models that keep more
            ours, theirs = _work(run, "ngpt", way, device), _work(run, other, other_way, device)
            goal = 1 / size.most if fused else None
            case = f"nGPT {way}, D={run.width}, {run.layers} layers, {run.batch} windows of {run.window}"
            label = f"{'GPT' if other == 'gpt' else 'nGPT'} {other_way}"
            yield timed(case, "ms per step", ours, theirs, label, device, error=errors[way], goal=goal)
            del ours, theirs


def _built(size: Size, model: str, overrides: tuple[str, ...], device: torch.device) -> tuple[Stepper, str]:
    """Return the stepper of a model, and the implementation of the operations that its config asks for."""
    config: dict[str, Any] = compose("ngpt/steptime", [*size.overrides(), *overrides], seed=0)
    torch.manual_seed(0)
    stepper = build_stepper(config["models"][model], config, StepSettings(**config["step"]), device)
    return stepper, config["machine"]["implementation"]


def _work(size: Size, model: str, way: str, device: torch.device) -> Callable[[], Tensor]:
    stepper, implementation = _built(size, model, WAYS[way], device)

    def work() -> Tensor:
        with prefer(implementation):
            return stepper.step()

    return work


def _gradients(size: Size, overrides: tuple[str, ...], device: torch.device) -> list[Tensor]:
    """Return the gradients of one batch at nGPT's first weights."""
    stepper, implementation = _built(size, "ngpt", overrides, device)
    with prefer(implementation):
        stepper.gradients()
    return [parameter.grad.float() for parameter in stepper.module.parameters() if parameter.grad is not None]
