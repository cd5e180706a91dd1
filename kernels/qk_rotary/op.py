"""Queries and keys as attention reads them: turned by their position, on the unit sphere, scaled.

Legend: B sequences, T tokens, H heads, Y head width, P positions of the tables.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import EXACT, Shapes, Way, choose, triton_way
from paper_repro.models.common import RotaryTables, check_width
from paper_repro.models.common import rotate as rotate_by_definition

WIDEST = 1024
"""The fused kernel holds whole rows in registers."""
SHAPES = Shapes(query="B T H Y", key="B T H Y", cos="P W", sin_first="P W", sin_second="P W", scale="H Y")


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
    return _rotate((x,), tables, scale, normalize, implementation)[0]


def rotate_queries_and_keys(
    query: Tensor,
    key: Tensor,
    tables: RotaryTables,
    scale: Tensor | None = None,
    normalize: bool = False,
    implementation: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Apply ``rotate`` to both, (B, T, H, Y), with one ``scale``; each becomes (B, H, T, Y)."""
    turned_query, turned_key = _rotate((query, key), tables, scale, normalize, implementation)
    return turned_query, turned_key


def _rotate(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool, implementation: str
) -> tuple[Tensor, ...]:
    SHAPES.check(inputs[0], inputs[-1], *tables, scale)
    tokens, width = inputs[0].shape[1], inputs[0].shape[3]
    check_width(width)
    if tables.cos.shape[1] * 2 != width:
        raise ValueError(f"tables must each have shape (P, Y/2) = (P, {width // 2}), got {tuple(tables.cos.shape)}")
    if tokens > len(tables.cos):
        raise ValueError(
            f"{tokens} tokens are more than the {len(tables.cos)} positions of the tables: make longer ones"
        )
    given = (*inputs, *tables) if scale is None else (*inputs, *tables, scale)
    turn = choose("qk_rotary", WAYS, implementation, given, width=inputs[0].shape[-1])
    return turn(inputs, tables, scale, normalize)


def _fused(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool
) -> tuple[Tensor, ...]:
    from paper_repro.kernels.qk_rotary.triton import Rotation as Fused

    return tuple(Fused.apply(x, *tables, scale, normalize).transpose(1, 2) for x in inputs)


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


WAYS: tuple[Way[Callable[..., tuple[Tensor, ...]]], ...] = (
    triton_way(_fused, widest=WIDEST),
    Way(
        "closed_form",
        lambda inputs, *given: tuple(_turn_complex(x, *given) for x in inputs),
        by_hand=True,
        dtypes=EXACT,
        one_dtype=True,
        auto_on=("cpu",),
    ),
    Way("reference", lambda inputs, *given: tuple(rotate_by_definition(x, *given) for x in inputs)),
)
