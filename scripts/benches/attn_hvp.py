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

KIB = 2**10


class Size(NamedTuple):
    """B sequences, H heads, T tokens, Y channels of a head."""

    sequences: int
    heads: int
    tokens: int
    width: int

    def __str__(self) -> str:
        return f"{self.sequences} x {self.tokens} tokens, H={self.heads}, Y={self.width}"


TRAINING = Size(4, 6, 128, 64)
"""EBT's training step at D = 384."""
LONG = [Size(1, 4, tokens, 64) for tokens in (512, 1024, 2048)]


def compare(device: torch.device) -> Iterator[Comparison]:
    """Compare bytes and times, with and without a column of one's own; our side is a Triton kernel."""
    own = partial(self_slot_attention, implementation="fused")
    definition = partial(self_slot_attention, implementation="reference")
    pairs: list[tuple[Callable[..., Tensor], Callable[..., Tensor], int, int, str]] = [
        (own, definition, 3, 5, "definition, with an own column"),
        (_causal, _math, 1, 3, "math backend, causal"),
    ]
    for kind, size in [*(("bytes", size) for size in LONG), *(("times", size) for size in (TRAINING, *LONG))]:
        for ours, theirs, rows, inputs, other in pairs:
            one, two = (_product(size, device, attend, rows, inputs) for attend in (ours, theirs))
            error = relative_error(one(), two())
            if kind == "times":
                yield timed(str(size), "ms", one, two, other, device, error=error)
            else:
                found, expected = ([peak_bytes(product) / KIB / size.tokens] for product in (one, two))
                yield Comparison(str(size), "KiB per token at the peak", found, expected, other, error)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with differentiable(order=2):
        return causal_attention(query, key, value, implementation="fused")


def _math(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


def _product(
    size: Size, device: torch.device, attend: Callable[..., Tensor], num_rows: int, num_inputs: int
) -> Callable[[], list[Tensor]]:
    """Return what computes the product, as gradients by all inputs (B, H, T, Y), of which the first belong to the
    rows.
    """
    generator = torch.Generator(device).manual_seed(0)
    drawn = [torch.randn(size, generator=generator, device=device) for _ in range(2 * num_inputs)]
    leaves, along = [leaf.requires_grad_() for leaf in drawn[:num_inputs]], drawn[num_inputs:]

    def work() -> list[Tensor]:
        rows, captured = tuple(leaves[:num_rows]), leaves[num_rows:]
        first = torch.func.grad(lambda given: attend(*given, *captured).square().sum())(rows)
        return list(torch.autograd.grad(first, leaves, along[:num_rows]))

    return work
