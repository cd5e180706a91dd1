"""Queries and keys as attention reads them: turned by their position, on the unit sphere, scaled.

Legend: B sequences, T tokens, H heads, Y head width, P positions of the tables.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import EXACT, Shapes, Way, choose, triton_way
from paper_repro.models import common
from paper_repro.models.common import RotaryTables

WIDEST = 1024
"""The fused kernel holds whole rows in registers."""
SHAPES = Shapes(x="B T H Y", cos="P W", sin_first="P W", sin_second="P W", scale="H Y")


def rotate(
    x: Tensor,
    tables: RotaryTables,
    scale: Tensor | None = None,
    normalize: bool = False,
    implementation: str = "auto",
) -> Tensor:
    """Return each row's pairs (2i, 2i+1) turned, then unit norm if ``normalize``, then times ``scale`` (nGPT, eq. 15,
    16).

    The norm has no epsilon.  Computed in float32 (float64 where an input is).  Gradients reach ``x`` and ``scale``.
    "fused" (Triton) has first derivatives in reverse mode only, "closed_form", by complex numbers, of any order; "auto"
    takes it on a CPU.

    Args:
        x: (B, T, H, Y), of any strides: a view of a packed projection is not copied.
        tables: of at least T positions; the first T are read.
        scale: s_qk, (H, Y).

    Returns:
        (B, H, T, Y) in x's dtype: a view of contiguous (B, T, H, Y), the layout of flash attention.
    """
    SHAPES.check(x, *tables, scale)
    tokens, width = x.shape[1], x.shape[3]
    if tables.cos.shape[1] * 2 != width:
        raise ValueError(f"tables must each have shape (P, Y/2) = (P, {width // 2}), got {tuple(tables.cos.shape)}")
    if tokens > len(tables.cos):
        raise ValueError(
            f"{tokens} tokens are more than the {len(tables.cos)} positions of the tables: make longer ones"
        )
    given = (x, *tables) if scale is None else (x, *tables, scale)
    return choose("qk_rotary", WAYS, implementation, given, width=width)(x, tables, scale, normalize)


def _fused(x: Tensor, tables: RotaryTables, scale: Tensor | None, normalize: bool) -> Tensor:
    from paper_repro.kernels.qk_rotary.triton import Rotation

    turned: Tensor = Rotation.apply(x, *tables, scale, normalize)
    return turned.transpose(1, 2)


def _turn_complex(x: Tensor, tables: RotaryTables, scale: Tensor | None, normalize: bool) -> Tensor:
    """Turn pairs z = a + ib: with C = cos + i (s1 + s2) / 2 and S = i (s2 - s1) / 2 they become C z + S conj(z)."""
    cos, first, second = (table[: x.shape[1], None] for table in tables)  # (T, 1, Y/2) each
    pairs = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))  # (B, T, H, Y/2)
    turned = pairs * torch.complex(cos, (first + second) / 2)
    if not torch.equal(first, second):
        turned = turned + pairs.conj() * torch.complex(torch.zeros_like(cos), (second - first) / 2)
    out = torch.view_as_real(turned).flatten(-2)  # (B, T, H, Y)
    if normalize:
        inverse = torch.linalg.vector_norm(out, dim=-1, keepdim=True).reciprocal()  # (B, T, H, 1)
        out = out * (inverse if scale is None else inverse * scale)
    elif scale is not None:
        out = out * scale
    return out.transpose(1, 2)


WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    triton_way(_fused, widest=WIDEST),
    Way("closed_form", _turn_complex, by_hand=True, dtypes=EXACT, one_dtype=True, auto_on=("cpu",)),
    Way("reference", common.rotate),
)
