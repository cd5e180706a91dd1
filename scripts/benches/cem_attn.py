"""CEM's attention, forward and backward, per inner step: on a CPU the descent against its definition, on a GPU one
attention against flash attention with keys and values of their own, and against FlexAttention of the same scores.

Flash attention has neither the shared diagonal nor biases; the error beside it is that of ours from the definition in
float32, of one sequence, which is as many as its scores leave room for.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from side_by_side import Comparison, Results, largest_error, timed, with_gradients
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.tied_attention import descend, tied_attention

GOAL = 1 / 1.9
REPETITIONS = 5


class Size(NamedTuple):
    """B sequences, J tokens, D width, K heads."""

    sequences: int
    tokens: int
    width: int
    heads: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    def __str__(self) -> str:
        return f"{self.sequences} x {self.tokens} tokens, D={self.width}, K={self.heads}"


CPU = (Size(4, 64, 64, 2), Size(8, 128, 64, 2), Size(16, 128, 64, 2), Size(16, 256, 64, 2))
CUDA = (Size(8, 2048, 672, 12), Size(8, 2048, 768, 12), Size(8, 2048, 864, 12))


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare T = 1, 2 and 4 in float32 on a CPU; bfloat16 on a GPU, without and with the shared diagonal."""
    if device.type == "cpu":
        for size in CPU:
            for num_steps in (1, 2, 4):
                yield _descent(size, num_steps, device)
        return
    for size in CUDA:
        for shared in (False, True):
            yield _against_flash(size, shared, device)
    yield _against_flex(CUDA[1], device)


def _descent(size: Size, num_steps: int, device: torch.device) -> Comparison:
    leaves = descent_leaves(size, device)
    ours, other = (
        with_gradients(partial(descended, size, leaves, num_steps, way), leaves) for way in ("auto", "reference")
    )
    many: dict[str, Any] = {"calls": REPETITIONS, "units": num_steps, "error": largest_error(ours(), other())}
    return timed(f"{size}, T={num_steps}", "ms per inner step", ours, other, "definition", device, **many)


def descent_leaves(size: Size, device: torch.device) -> list[Tensor]:
    """Draw the leaves x, keys, reading, writing, h d, norm weight, bias_self, bias_cross."""
    generator = torch.Generator(device).manual_seed(0)
    rows, width = (size.sequences, size.tokens), size.width
    shapes = [(*rows, width), (*rows, size.heads, size.head), *[(width, width)] * 2, (*rows, width)]
    drawn = [torch.randn(shape, generator=generator, device=device) for shape in shapes]
    drawn[2:4] = [matrix / width**0.5 for matrix in drawn[2:4]]
    drawn += [torch.ones(width, device=device), *torch.zeros(2, device=device)]
    return [value.requires_grad_() for value in drawn]


def descended(size: Size, leaves: list[Tensor], num_steps: int, way: str) -> Tensor:
    """Descend, under bfloat16 autocast on a GPU, as models train."""
    x, keys, reading, writing, context, weight, bias_self, bias_cross = leaves
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        options: dict[str, Any] = {"num_steps": num_steps, "tau": size.head**0.5, "slopes": slopes_of(size, x.device)}
        options |= {"bias_self": bias_self, "bias_cross": bias_cross, "implementation": way}
        return descend(x, keys, reading, writing, context, weight, **options)


def _against_flash(size: Size, shared: bool, device: torch.device) -> Comparison:
    leaves = [value.requires_grad_() for value in _drawn(size, torch.bfloat16, device)]
    query, key, value = (torch.randn_like(leaves[0]).transpose(1, 2).requires_grad_() for _ in range(3))
    own = leaves if shared else leaves[:2]
    theirs = with_gradients(
        lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True), [query, key, value]
    )
    one = [leaf[:1].detach().requires_grad_() for leaf in own]
    wide = [leaf.float().detach().requires_grad_() for leaf in one]
    error = largest_error(_attention(size, one, "fused")(), _attention(size, wide, "reference")())
    case = f"{size}, bfloat16, {'with' if shared else 'without'} the shared diagonal"
    sides = _attention(size, own, "fused"), theirs, "flash attention, separate values"
    return timed(case, "ms per inner step", *sides, device, calls=REPETITIONS, error=error, goal=GOAL)


def _against_flex(size: Size, device: torch.device) -> Comparison:
    leaves = [value.requires_grad_() for value in _drawn(size, torch.bfloat16, device)]
    ours, theirs = _attention(size, leaves, "fused"), with_gradients(_flex(size, leaves, device), leaves)
    case, error = f"{size}, bfloat16, with the shared diagonal", largest_error(ours(), theirs())
    return timed(case, "ms per inner step", ours, theirs, "FlexAttention", device, calls=REPETITIONS, error=error)


def _flex(size: Size, leaves: list[Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Return the same scores as a score_mod, what heads share in a matrix (B, J, J) that is made before."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, keys, state, context = leaves
    slopes = slopes_of(size, device)
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, size.tokens, size.tokens, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def work() -> Tensor:
        shared = torch.bmm(state, context.mT) / size.head**0.5

        def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return s + shared[b, q, kv] - slopes[h] * (q - kv)

        values = keys.transpose(1, 2)
        out: Tensor = compiled(query.transpose(1, 2), values, values, score_mod=score, block_mask=mask)
        return out.transpose(1, 2)

    return work


def _attention(size: Size, leaves: list[Tensor], way: str) -> Results:
    slopes = slopes_of(size, leaves[0].device)
    return with_gradients(
        lambda: tied_attention(*leaves, tau=size.head**0.5, slopes=slopes, implementation=way)[0], leaves
    )


def _drawn(size: Size, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Draw query, keys, u and h d."""
    generator = torch.Generator(device).manual_seed(0)
    rows = (size.sequences, size.tokens)
    shapes = [(*rows, size.heads, size.head)] * 2 + [(*rows, size.width)] * 2
    drawn = [torch.randn(shape, generator=generator, device=device) for shape in shapes]
    drawn[3] *= 0.1
    return [value.to(dtype) for value in drawn]


def slopes_of(size: Size, device: torch.device) -> Tensor:
    """Return the slope of each head's bias by distance, (K,)."""
    return torch.tensor([2.0 ** (-8 * (head + 1) / size.heads) for head in range(size.heads)], device=device)
