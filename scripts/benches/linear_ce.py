"""Cross entropy of nGPT's scaled logits, forward and backward: a piece at a time against all logits at once.

The memory is what one forward and backward pass adds, on a CPU to a process of its own.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, Results, added_memory, in_child, largest_error, timed, with_gradients
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.linear_ce import linear_cross_entropy
from paper_repro.training.counting import count_flops

VOCABULARIES = (32000, 50304)
OTHER = "cross_entropy(linear(h, weight) * scale)"


class Size(NamedTuple):
    tokens: int
    width: int
    dtype: torch.dtype
    goal: float  # in time
    repetitions: int  # passes that one timing covers


CPU, CUDA = Size(4096, 256, torch.float32, 1 / 1.1, 1), Size(16384, 1024, torch.bfloat16, 1 / 1.05, 5)
MEMORY_GOAL = 4.0


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare memory, then time, for each vocabulary: a child's peak begins at that of the process that starts it."""
    size = CPU if device.type == "cpu" else CUDA
    for vocabulary in VOCABULARIES:
        yield _memory(size, vocabulary, device)
    for vocabulary in VOCABULARIES:
        yield _time(size, vocabulary, device)


def _time(size: Size, vocabulary: int, device: torch.device) -> Comparison:
    inputs = _inputs(size, vocabulary, device)
    ours, other = _pass(linear_cross_entropy, inputs), _pass(_whole, inputs)
    counted: dict[str, Any] = {"error": largest_error(ours(), other()), "flops": count_flops(other)}
    counted |= {"calls": size.repetitions, "goal": size.goal}
    return timed(_case(size, vocabulary), "ms", ours, other, OTHER, device, **counted)


def _memory(size: Size, vocabulary: int, device: torch.device) -> Comparison:
    inputs = (size, vocabulary, device)
    ours, theirs = (
        [in_child(_added, loss, *inputs) if device.type == "cpu" else _added(loss, *inputs)]
        for loss in (linear_cross_entropy, _whole)
    )
    case = f"{_case(size, vocabulary)}: memory beside the inputs"
    return Comparison(case, "MiB at the peak", ours, theirs, OTHER, goal=MEMORY_GOAL)


def _case(size: Size, vocabulary: int) -> str:
    return f"{size.tokens} tokens, D={size.width}, V={vocabulary}, {str(size.dtype).removeprefix('torch.')}"


def _inputs(size: Size, vocabulary: int, device: torch.device) -> list[Tensor]:
    """Draw h and weight with unit rows, scale near 60 as after training (nGPT, table 4), 1 % of the targets ignored."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((size.tokens, size.width), (vocabulary, size.width))
    rows = [torch.randn(shape, generator=generator, device=device) for shape in shapes]
    for value in rows:
        value.div_(torch.linalg.vector_norm(value, dim=-1, keepdim=True))
    scale = 60 + torch.randn(vocabulary, generator=generator, device=device)
    targets = torch.randint(vocabulary, (size.tokens,), generator=generator, device=device)
    targets[::100] = -100
    return [*(value.to(size.dtype).requires_grad_() for value in rows), targets, scale.requires_grad_()]


def _whole(h: Tensor, weight: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(h, weight) * scale, targets)


def _pass(loss: Callable[..., Tensor], inputs: list[Tensor]) -> Results:
    return with_gradients(lambda: loss(*inputs), [value for value in inputs if value.requires_grad])


def _added(loss: Callable[..., Tensor], size: Size, vocabulary: int, device: torch.device) -> float:
    """Measure the MiB that a pass, its results included, adds to what holds the inputs."""
    return added_memory(_pass(loss, _inputs(size, vocabulary, device)), device)
