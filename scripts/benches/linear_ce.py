"""Cross entropy of nGPT's scaled logits, forward and backward: a piece at a time against all logits at once.

The memory rows start this file as a child process on a CPU: ``linear_ce.py VOCABULARY pieces|whole`` prints the
MiB that one forward and backward pass adds to a process.
"""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from children import measure_in_child
from side_by_side import Comparison, interleaved, relative_error, wait
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.linear_ce import linear_cross_entropy
from paper_repro.training.counting import count_flops
from paper_repro.training.machine import peak_memory_mib

VOCABULARIES = (32000, 50304)
OTHER = "cross_entropy(linear(h, weight) * scale)"


class Size(NamedTuple):
    """Sizes of one bench: ``goal`` is that in time, and one timing covers ``repetitions`` passes."""

    tokens: int
    width: int
    dtype: torch.dtype
    goal: float
    repetitions: int


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
    error = max(relative_error([one.float()], [two.float()]) for one, two in zip(ours(), other(), strict=True))
    flops = count_flops(other)
    times = interleaved(_repeated(ours, size), _repeated(other, size), size.repetitions, device)
    rate = flops / (sorted(times[0])[len(times[0]) // 2] * 1e-3) / 1e12
    return Comparison(_case(size, vocabulary), "ms", *times, OTHER, error, size.goal, rate)


def _memory(size: Size, vocabulary: int, device: torch.device) -> Comparison:
    measure = _child if device.type == "cpu" else _allocated
    ours, theirs = ([measure(size, vocabulary, device, way)] for way in ("pieces", "whole"))
    case = f"{_case(size, vocabulary)}: memory beside the inputs"
    return Comparison(case, "MiB at the peak", ours, theirs, OTHER, 0.0, MEMORY_GOAL)


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


def _pass(loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], inputs: list[Tensor]) -> Callable[[], list[Tensor]]:
    leaves = [value for value in inputs if value.requires_grad]

    def work() -> list[Tensor]:
        found = loss(inputs[0], inputs[1], inputs[2], inputs[3])
        return [found.detach(), *torch.autograd.grad(found, leaves)]

    return work


def _repeated(work: Callable[[], object], size: Size) -> Callable[[], None]:
    def several() -> None:
        for _ in range(size.repetitions):
            work()

    return several


def _allocated(size: Size, vocabulary: int, device: torch.device, way: str) -> float:
    """Measure the MiB that a pass, its results included, adds to what the allocator gave out: after one that loads
    libraries.
    """
    work = _pass(linear_cross_entropy if way == "pieces" else _whole, _inputs(size, vocabulary, device))
    work()
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) / 2**20
    work()
    return (peak_memory_mib(device) or 0.0) - before


def _child(size: Size, vocabulary: int, device: torch.device, way: str) -> float:
    assert (size, device.type) == (CPU, "cpu")
    return measure_in_child(__file__, str(vocabulary), way)


def _added_to_process(vocabulary: int, way: str) -> float:
    """Measure the MiB that a pass, its results included, adds to the peak of a process that holds the inputs."""
    device = torch.device("cpu")
    work = _pass(linear_cross_entropy if way == "pieces" else _whole, _inputs(CPU, vocabulary, device))
    before = peak_memory_mib(device) or 0.0
    work()
    return (peak_memory_mib(device) or 0.0) - before


if __name__ == "__main__":
    print(_added_to_process(int(sys.argv[1]), sys.argv[2]))
