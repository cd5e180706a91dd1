"""CEM's attention: its time forward and backward, and the memory that it keeps for the way back."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from side_by_side import MIB, Comparison, largest_error, normal, timed, with_gradients
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.tied_attention import descend, tied_attention

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
    """Compare times: on a CPU the descent of T = 1, 2 and 4 in float32 with its definition, on a GPU one attention in
    bfloat16, without and with the shared diagonal, with flash attention that has keys and values of their own, and with
    FlexAttention of the same scores.

    Flash attention has neither the shared diagonal nor biases; the error beside it is that of ours from the definition
    in float32, of one sequence, which is as many as its scores leave room for.
    """
    if device.type == "cpu":
        for size in (Size(4, 64, 64, 2), Size(8, 128, 64, 2), Size(16, 128, 64, 2), Size(16, 256, 64, 2)):
            leaves = _leaves_of_descent(size, device)
            for count in (1, 2, 4):
                ours, other = (_descent(size, leaves, count, way) for way in ("auto", "reference"))
                yield timed(f"{size}, T={count}", TIME, ours, other, "definition", calls=CALLS, units=count)
        return
    for width in (672, 768, 864):
        size = Size(8, 2048, width, 12)
        for shared in (False, True):
            yield _against_flash(size, shared, device)
    size = Size(8, 2048, 768, 12)
    leaves = _leaves(size, device)
    sides = _attention(size, leaves, "fused"), with_gradients(_flex(size, leaves, device), leaves), "FlexAttention"
    yield timed(f"{size}, bfloat16, with the shared diagonal", TIME, *sides, calls=CALLS)


def cem_memory(device: torch.device) -> Iterator[Comparison]:
    """Compare the bytes of tensors that autograd keeps per further inner step with the definition's; on a GPU also with
    states of the stream.
    """
    on_cpu, unit = device.type == "cpu", "kept per further inner step"
    sizes = (
        [(8, 128, 64, 2), (16, 256, 64, 2), (2, 512, 768, 12)] if on_cpu else [(8, 2048, 672, 8), (8, 2048, 768, 12)]
    )
    for size in map(Size._make, sizes):
        one, ways = size if on_cpu else size._replace(sequences=1), ("closed_form" if on_cpu else "fused", "reference")
        ours, theirs = ([_kept_per_step(one, way, device)] for way in ways)
        leaves = _leaves_of_descent(one, device)
        error = largest_error(*(_descent(one, leaves, STEPS[0], way)() for way in ways))
        yield Comparison(f"{one}", f"MiB {unit}", ours, theirs, "definition", error, MEMORY_GOAL)
        if not on_cpu:
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
    """Descend, under bfloat16 autocast on a GPU, as models train."""
    *tensors, bias_self, bias_cross = leaves
    options: dict[str, Any] = {"bias_self": bias_self, "bias_cross": bias_cross, "implementation": way}
    device = bias_self.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        return descend(*tensors, num_steps=num_steps, tau=size.head**0.5, slopes=size.slopes(device), **options)


def _descent(size: Size, leaves: list[Tensor], num_steps: int, way: str) -> Callable[[], list[Tensor]]:
    return with_gradients(lambda: _descended(size, leaves, num_steps, way), leaves)


def _leaves(size: Size, device: torch.device) -> list[Tensor]:
    """Draw query, keys, u and h d in bfloat16."""
    draw, rows = normal(device), (size.sequences, size.tokens)
    drawn = [draw(*rows, size.heads, size.head) for _ in range(2)] + [draw(*rows, size.width) for _ in range(2)]
    drawn[3] *= 0.1
    return [value.bfloat16().requires_grad_() for value in drawn]


def _attention(size: Size, leaves: list[Tensor], way: str) -> Callable[[], list[Tensor]]:
    options: dict[str, Any] = {"tau": size.head**0.5, "slopes": size.slopes(leaves[0].device), "implementation": way}
    return with_gradients(lambda: tied_attention(*leaves, **options)[0], leaves)


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


def _flex(size: Size, leaves: list[Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Return the same scores as a score_mod, what heads share in a matrix (B, J, J) that is made before."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query, keys, state, context = leaves
    slopes = size.slopes(device)
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


def _kept_per_step(size: Size, way: str, device: torch.device) -> float:
    few, many = (_kept(size, num_steps, way, device) for num_steps in STEPS)
    return (many - few) / (STEPS[1] - STEPS[0]) / MIB


def _kept(size: Size, num_steps: int, way: str, device: torch.device) -> int:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = _descended(size, _leaves_of_descent(size, device), num_steps, way)
    assert out.requires_grad
    return sum(kept.values())
