"""What CEM's attention keeps for the way back per further inner step: one op against autograd of the definition.

Bytes are those of the tensors that autograd keeps.
"""

from collections.abc import Iterator

import torch
from cem_attn import Size, descended, descent_leaves
from side_by_side import MIB, Comparison, largest_error
from torch import Tensor

LEAST_RATIO, MOST_STATES = 4.0, 3.0
STEPS = (2, 4)
"""T of the two measurements whose difference is that of two further steps."""
CPU = (Size(8, 128, 64, 2), Size(16, 256, 64, 2), Size(2, 512, 768, 12))
CUDA = (Size(8, 2048, 672, 8), Size(8, 2048, 768, 12))


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare the bytes kept per further step with the definition's; on a GPU also with states of the stream."""
    if device.type == "cpu":
        for size in CPU:
            yield _against_definition(size, "closed_form", device)
        return
    for size in CUDA:
        yield _against_definition(size._replace(sequences=1), "fused", device)
        state = size.sequences * size.tokens * size.width * 4 / MIB  # in x's dtype, float32 under autocast
        ours, unit = [_per_step(size, "fused", device) / state], "residual-stream states kept per further inner step"
        yield Comparison(f"{size}", unit, ours, [MOST_STATES], "the limit", goal=1.0)


def _against_definition(size: Size, way: str, device: torch.device) -> Comparison:
    ours, theirs = ([_per_step(size, one, device)] for one in (way, "reference"))
    error = largest_error(*(_gradients(size, one, device) for one in (way, "reference")))
    return Comparison(f"{size}", "MiB kept per further inner step", ours, theirs, "definition", error, LEAST_RATIO)


def _per_step(size: Size, way: str, device: torch.device) -> float:
    few, many = (_kept(size, steps, way, device) for steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0]) / MIB


def _gradients(size: Size, way: str, device: torch.device) -> list[Tensor]:
    """Return x_T and the gradients of the matrices, which depend on all others."""
    leaves = descent_leaves(size, device)
    out = descended(size, leaves, STEPS[0], way)
    return [out.detach(), *torch.autograd.grad(out.square().mean(), leaves[2:4])]


def _kept(size: Size, num_steps: int, way: str, device: torch.device) -> float:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = descended(size, descent_leaves(size, device), num_steps, way)
    assert out.requires_grad
    return float(sum(kept.values()))
