"""CEM's attention: its time forward and backward, and the memory that it keeps for the way back."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.tied_attention import descend, tied_attention
from paper_repro.models.common import Positions, no_positions
from paper_repro.scripts.side_by_side import MIB, Comparison, check_on_gpu, largest_error, normal, timed, with_gradients

TIME, TIME_GOAL, CALLS = "ms per inner step", 1 / 1.9, 5
MEMORY_GOAL, MOST_STATES = 4.0, 3.0
STEPS = (2, 4)
"""T of the two measurements whose difference is that of two further steps."""


class Size(NamedTuple):
    """B sequences, J tokens, D width, K heads."""

    sequences: int
    tokens: int
    width: int
    heads: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    def slopes(self, device: torch.device) -> Tensor:
        """Return the slope of each head's bias by distance, (K,)."""
        return torch.tensor([2.0 ** (-8 * (head + 1) / self.heads) for head in range(self.heads)], device=device)

    def __str__(self) -> str:
        return f"{self.sequences} x {self.tokens} tokens, D={self.width}, K={self.heads}"


def cem_attn(device: torch.device) -> Iterator[Comparison]:
    """Compare the time of one attention in bfloat16, without and with the shared diagonal, with flash attention that
    has keys and values of its own.

    Flash attention has neither the shared diagonal nor biases; the error beside it is that of ours from the definition
    in float32, of one sequence, which is as many as its scores leave room for.
    """
    check_on_gpu(device)
    for width in (672, 768, 864):
        size = Size(8, 2048, width, 12)
        for shared in (False, True):
            yield _against_flash(size, shared, device)


def cem_memory(device: torch.device) -> Iterator[Comparison]:
    """Compare the bytes that autograd keeps per further inner step with the definition's and with states of the
    stream.
    """
    check_on_gpu(device)
    unit = "kept per further inner step"
    for size in (Size(8, 2048, 672, 8), Size(8, 2048, 768, 12)):
        one = size._replace(sequences=1)
        ours, theirs = ([_kept_per_step(one, way, device)] for way in ("fused", "reference"))
        leaves = _leaves_of_descent(one, device)
        error = largest_error(*(_descent(one, leaves, STEPS[0], way)() for way in ("fused", "reference")))
        yield Comparison(f"{one}", f"MiB {unit}", ours, theirs, "definition", error, MEMORY_GOAL)
        state = size.sequences * size.tokens * size.width * 4 / MIB  # in x's dtype, float32 under autocast
        ours = [_kept_per_step(size, "fused", device) / state]
        yield Comparison(f"{size}", f"residual-stream states {unit}", ours, [MOST_STATES], "the limit", goal=1.0)


def _leaves_of_descent(size: Size, device: torch.device) -> list[Tensor]:
    """Draw the leaves x, keys, reading, writing, h d, norm weight, bias_self, bias_cross."""
    draw, rows, width = normal(device), (size.sequences, size.tokens), size.width
    drawn = [draw(*rows, width), draw(*rows, size.heads, size.head)]
    drawn += [draw(width, width) / width**0.5 for _ in range(2)]
    drawn += [draw(*rows, width), torch.ones(width, device=device), *torch.zeros(2, device=device)]
    return [value.requires_grad_() for value in drawn]


def _descended(size: Size, leaves: list[Tensor], num_steps: int, way: str) -> Tensor:
    """Descend under bfloat16 autocast, as models train."""
    x, keys, reading, writing, context, norm_weight, bias_self, bias_cross = leaves
    positions = Positions(size.slopes(bias_self.device), bias_self, bias_cross)
    with torch.autocast("cuda", torch.bfloat16):
        return descend(
            x, keys, reading, writing, context, norm_weight, positions,
            num_steps=num_steps, tau=size.head**0.5, implementation=way,
        )  # fmt: skip


def _descent(size: Size, leaves: list[Tensor], num_steps: int, way: str) -> Callable[[], list[Tensor]]:
    return with_gradients(lambda: _descended(size, leaves, num_steps, way), leaves)


def _leaves(size: Size, device: torch.device) -> list[Tensor]:
    """Draw query, keys, u and h d in bfloat16."""
    draw, rows = normal(device), (size.sequences, size.tokens)
    drawn = [draw(*rows, size.heads, size.head) for _ in range(2)] + [draw(*rows, size.width) for _ in range(2)]
    drawn[3] *= 0.1
    return [value.bfloat16().requires_grad_() for value in drawn]


def _attention(size: Size, leaves: list[Tensor], way: str) -> Callable[[], list[Tensor]]:
    query, keys, *others = leaves
    state, context = others or (None, None)
    positions = no_positions(keys)._replace(slopes=size.slopes(keys.device))
    return with_gradients(
        lambda: tied_attention(query, keys, state, context, positions, size.head**0.5, way)[0], leaves
    )


def _against_flash(size: Size, shared: bool, device: torch.device) -> Comparison:
    leaves = _leaves(size, device)[: 4 if shared else 2]
    query, key, value = (torch.randn_like(leaves[0]).transpose(1, 2).requires_grad_() for _ in range(3))
    flash = with_gradients(
        lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True), [query, key, value]
    )
    one = [leaf[:1].detach().requires_grad_() for leaf in leaves]
    wide = [leaf.float().detach().requires_grad_() for leaf in one]
    error = largest_error(_attention(size, one, "fused")(), _attention(size, wide, "reference")())
    case = f"{size}, bfloat16, {'with' if shared else 'without'} the shared diagonal"
    sides = _attention(size, leaves, "fused"), flash, "flash attention, separate values"
    return timed(case, TIME, *sides, calls=CALLS, error=error, goal=TIME_GOAL)


def _kept_per_step(size: Size, way: str, device: torch.device) -> float:
    few, many = (_kept(size, num_steps, way, device) for num_steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0]) / MIB


def _kept(size: Size, num_steps: int, way: str, device: torch.device) -> int:
    leaves = _leaves_of_descent(size, device)
    before = torch.cuda.memory_allocated(device)
    out = _descended(size, leaves, num_steps, way)
    assert out.requires_grad
    return torch.cuda.memory_allocated(device) - before
