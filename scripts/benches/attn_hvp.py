"""A Hessian-vector product through attention: its memory by tokens, and its time.

One product is a forward pass, its gradient by what belongs to the rows, and the gradient of that by everything.  The
observed keys and values are captured, as in EBT.  Our side never holds T x T scores, so its bytes per token stay the
same from 512 to 2,048 tokens.  The other side is autograd: of the definition with a column of one's own, and of torch's
"math" backend of scaled_dot_product_attention, the only one that can be differentiated twice, without.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from side_by_side import Comparison, relative_error, timed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.kernels.dispatch import differentiable
from paper_repro.kernels.self_slot_attention import self_slot_attention
from paper_repro.training.counting import peak_bytes

TOKENS = (512, 1024, 2048)
KIB = 2**10
Attend = Callable[..., Tensor]


class Size(NamedTuple):
    """B sequences, H heads, T tokens, Y channels of a head."""

    sequences: int
    heads: int
    tokens: int
    width: int

    def __str__(self) -> str:
        return f"{self.sequences} x {self.tokens} tokens, H={self.heads}, Y={self.width}"


class Side(NamedTuple):
    """One attention; of its inputs the first ``rows`` belong to the rows."""

    attend: Attend
    rows: int
    inputs: int


TRAINING = Size(4, 6, 128, 64)
"""EBT's training step at D = 384."""


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare bytes and times, with and without a column of one's own."""
    way = "closed_form" if device.type == "cpu" else "fused"
    own = Side(partial(self_slot_attention, implementation=way), 3, 5)
    definition = Side(partial(self_slot_attention, implementation="reference"), 3, 5)
    causal, math = Side(partial(_causal, way), 1, 3), Side(_math, 1, 3)
    for tokens in TOKENS:
        size = Size(1, 4, tokens, 64)
        yield _bytes(size, device, own, definition, "definition, with an own column")
        yield _bytes(size, device, causal, math, "math backend, causal")
    for size in (TRAINING, *(Size(1, 4, tokens, 64) for tokens in TOKENS)):
        yield _times(size, device, own, definition, "definition, with an own column")
        yield _times(size, device, causal, math, "math backend, causal")


def _causal(way: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with differentiable(order=2):
        return causal_attention(query, key, value, implementation=way)


def _math(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


def _bytes(size: Size, device: torch.device, ours: Side, theirs: Side, other: str) -> Comparison:
    one, two = (_product(size, device, side) for side in (ours, theirs))
    found, expected = ([peak_bytes(product) / KIB / size.tokens] for product in (one, two))
    return Comparison(str(size), "KiB per token at the peak", found, expected, other, relative_error(one(), two()))


def _times(size: Size, device: torch.device, ours: Side, theirs: Side, other: str) -> Comparison:
    one, two = (_product(size, device, side) for side in (ours, theirs))
    return timed(str(size), "ms", one, two, other, device, error=relative_error(one(), two()))


def _product(size: Size, device: torch.device, side: Side) -> Callable[[], list[Tensor]]:
    """Return what computes the product, as gradients by all inputs (B, H, T, Y)."""
    generator = torch.Generator(device).manual_seed(0)
    drawn = [torch.randn(size, generator=generator, device=device) for _ in range(2 * side.inputs)]
    leaves, along = [leaf.requires_grad_() for leaf in drawn[: side.inputs]], drawn[side.inputs :]
    captured = leaves[side.rows :]

    def work() -> list[Tensor]:
        rows = tuple(leaves[: side.rows])
        first = torch.func.grad(lambda given: side.attend(*given, *captured).square().sum())(rows)
        return list(torch.autograd.grad(first, leaves, along[: side.rows]))

    return work
