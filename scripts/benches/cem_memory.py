"""What CEM's attention keeps for the way back per further inner step: one op against autograd of the definition.

On a CPU bytes are those of the tensors that autograd keeps; on a GPU those that the allocator gave out between the way
there and the way back, and the peak of a whole stack of layers, each a tied attention of the 162M model and no more.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cem_attn import Size, slopes_of
from side_by_side import MIB, Comparison, largest_error
from torch import Tensor

from paper_repro.kernels.tied_attention import descend
from paper_repro.training.machine import peak_memory_mib
from paper_repro.training.step_time import wait

LEAST_RATIO, MOST_STATES = 4.0, 3.0
STEPS = (2, 4)
"""T of the two measurements whose difference is that of two further steps."""
Measure = Callable[[Size, int, str, torch.device], float]
"""Bytes that T steps keep, by a way of computing."""
CPU = (Size(8, 128, 64, 2), Size(16, 256, 64, 2), Size(2, 512, 768, 12))
CUDA, LARGEST = (Size(8, 2048, 672, 8), Size(8, 2048, 768, 12)), Size(8, 2048, 864, 12)
LAYERS, MANY_STEPS = 12, 8


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare the bytes kept per further step; on a GPU also in residual-stream states, and T = 8 at the 162M size."""
    if device.type == "cpu":
        for size in CPU:
            yield _against_definition(size, _kept_by_autograd, device)
        return
    for size in CUDA:
        yield _against_definition(size._replace(sequences=1), _allocated, device)
        yield _in_states(size, device)
    yield _many_steps(device)


def _against_definition(size: Size, measure: Measure, device: torch.device) -> Comparison:
    ways = (_way(device), "reference")
    ours, theirs = ([_per_step(measure, size, way, device)] for way in ways)
    error = largest_error(*(_gradients(size, way, device) for way in ways))
    return Comparison(f"{size}", "MiB kept per further inner step", ours, theirs, "definition", error, LEAST_RATIO)


def _in_states(size: Size, device: torch.device) -> Comparison:
    """Express bytes in states of the residual stream, against the limit itself: a state has x's dtype, float32 under
    autocast.
    """
    state = size.sequences * size.tokens * size.width * 4 / MIB
    ours, unit = [_per_step(_allocated, size, _way(device), device) / state], "residual-stream states kept per further"
    return Comparison(f"{size}", f"{unit} inner step", ours, [MOST_STATES], "the limit", goal=1.0)


def _many_steps(device: torch.device) -> Comparison:
    ours, theirs = ([_peak(LARGEST, steps, device)] for steps in (MANY_STEPS, 1))
    whole = torch.cuda.get_device_properties(device).total_memory / MIB
    case = f"{LAYERS} attentions, {LARGEST}, T={MANY_STEPS} and T=1, of {whole:.0f} MiB"
    return Comparison(case, "MiB at the peak", ours, theirs, "T=1")


def _way(device: torch.device) -> str:
    return "closed_form" if device.type == "cpu" else "fused"


def _per_step(measure: Measure, size: Size, way: str, device: torch.device) -> float:
    few, many = (measure(size, steps, way, device) for steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0]) / MIB


def _leaves(size: Size, device: torch.device) -> list[Tensor]:
    """Draw the leaves x, keys, reading, writing, h d, norm weight, bias_self, bias_cross."""
    generator = torch.Generator(device).manual_seed(0)
    rows, width = (size.sequences, size.tokens), size.width
    shapes = [(*rows, width), (*rows, size.heads, size.head), *[(width, width)] * 2, (*rows, width)]
    drawn = [torch.randn(shape, generator=generator, device=device) for shape in shapes]
    drawn[2:4] = [matrix / width**0.5 for matrix in drawn[2:4]]
    drawn += [torch.ones(width, device=device), *torch.zeros(2, device=device)]
    return [value.requires_grad_() for value in drawn]


def _descended(size: Size, leaves: list[Tensor], num_steps: int, way: str) -> Tensor:
    """Descend, under bfloat16 autocast on a GPU, as models train."""
    x, keys, reading, writing, context, weight, bias_self, bias_cross = leaves
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        options: dict[str, Any] = {"num_steps": num_steps, "tau": size.head**0.5, "slopes": slopes_of(size, x.device)}
        options |= {"bias_self": bias_self, "bias_cross": bias_cross, "implementation": way}
        return descend(x, keys, reading, writing, context, weight, **options)


def _gradients(size: Size, way: str, device: torch.device) -> list[Tensor]:
    """Return x_T and the gradients of the matrices, which depend on all others."""
    leaves = _leaves(size, device)
    out = _descended(size, leaves, STEPS[0], way)
    return [out.detach(), *torch.autograd.grad(out.square().mean(), leaves[2:4])]


def _kept_by_autograd(size: Size, num_steps: int, way: str, device: torch.device) -> float:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = _descended(size, _leaves(size, device), num_steps, way)
    assert out.requires_grad
    return float(sum(kept.values()))


def _allocated(size: Size, num_steps: int, way: str, device: torch.device) -> float:
    leaves = _leaves(size, device)
    _descended(size, leaves, num_steps, way)  # loads libraries, whose workspaces stay
    wait(device)
    before = torch.cuda.memory_allocated(device)
    out = _descended(size, leaves, num_steps, way)
    wait(device)
    assert out.requires_grad
    return float(torch.cuda.memory_allocated(device) - before)


def _peak(size: Size, num_steps: int, device: torch.device) -> float:
    """Measure the peak of a pass forward and backward through attentions one after the other, which share their inputs'
    memory.
    """
    leaves = _leaves(size, device)
    torch.cuda.reset_peak_memory_stats(device)
    x = leaves[0]
    for _ in range(LAYERS):
        x = _descended(size, [x, *leaves[1:]], num_steps, "fused")
    x.square().mean().backward()
    wait(device)
    return peak_memory_mib(device) or 0.0
