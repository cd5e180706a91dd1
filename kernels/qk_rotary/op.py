"""Queries and keys as attention reads them: turned by their position, on the unit sphere, scaled.

With J (a, b) = (-b, a) on pairs (a + ib times i), C = (cos, cos), S = (sin_first, sin_second) and G the gradient of y,

    r = C x + S J x,   n = r / |r|,   y = s n,
    ds = sum n G,   dn = s G,   dr = (dn - n (n . dn)) / |r|,   dx = C dr - J S dr

where the sum goes over tokens, queries and keys.  Where both sines are the same, C + S J is the complex number
cos + i sin: one pass instead of three.

Legend: B sequences, T tokens, H heads, Y head width, P positions of the tables.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, closed_form_way, triton_way
from paper_repro.kernels.first_order import FirstOrder
from paper_repro.models.common import RotaryTables, check_width
from paper_repro.models.common import rotate as rotate_by_definition

PIECE = 1 << 16
"""Entries of a piece per thread: a float32 buffer of that size is 256 kB."""

Factors = tuple[Tensor, ...]


def _closed_form(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool
) -> tuple[Tensor, ...]:
    found = Rotation.apply(*tables, scale, normalize, *inputs)
    return tuple(out.transpose(1, 2) for out in found[: len(inputs)])


class Rotation(FirstOrder):
    """Maps tables, scale, ``normalize`` and inputs (B, T, H, Y) to as many results, then, if ``normalize``, 1 / |r| of
    each (B, T, H, 1).
    """

    @staticmethod
    def forward(
        cos: Tensor, first: Tensor, second: Tensor, scale: Tensor | None, normalize: bool, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        factors = _factors(cos, first, second, inputs[0])
        outputs = [x.new_empty(x.shape) for x in inputs]  # (B, T, H, Y) each
        inverses = [x.new_empty(*x.shape[:3], 1) for x in inputs] if normalize else []
        for x, out, *inverse in zip(inputs, outputs, *([inverses] if normalize else []), strict=True):
            for near, (piece, into, *norm) in _pieces(factors, _paired(x), out, *inverse):
                _turn(piece, near, into)
                if normalize:
                    torch.linalg.vector_norm(into, dim=-1, keepdim=True, out=norm[0])
                    into.mul_(norm[0].reciprocal_())
                if scale is not None:
                    into.mul_(scale)
        return *outputs, *inverses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        count = len(inputs) - 5
        ctx.mark_non_differentiable(*output[count:])
        ctx.save_for_backward(*inputs[:4], *inputs[5:], *output[count:])
        ctx.count = count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        tables_and_scale, given = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        dscale, *dinputs = RotationGradient.apply(*tables_and_scale, ctx.count, *gradients[: ctx.count], *given)
        return None, None, None, dscale, None, *dinputs


class RotationGradient(FirstOrder):
    """The gradients of scale and the inputs, given G of each input, the inputs, and 1 / |r| of each if normalised."""

    @staticmethod
    def forward(
        cos: Tensor, first: Tensor, second: Tensor, scale: Tensor | None, count: int, *given: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradients, inputs, inverses = given[:count], given[count : 2 * count], given[2 * count :]
        factors = _factors(cos, first, second, inputs[0])
        dinputs = [x.new_empty(x.shape) for x in inputs]  # (B, T, H, Y) each
        dscale = None if scale is None else torch.zeros_like(scale)
        for index, (G, x, dx) in enumerate(zip(gradients, inputs, dinputs, strict=True)):
            by_row = (_paired(G), _paired(x), dx, *inverses[index : index + 1])
            for near, (g, piece, into, *inverse) in _pieces(factors, *by_row):
                dr = g
                if inverse or dscale is not None:
                    r = _turn(piece, near, piece.new_empty(piece.shape))
                    dr = _through_scale_and_norm(g, r, scale, dscale, *inverse)
                _turn_back(dr, near, into)
        return dscale, *dinputs


def _through_scale_and_norm(
    G: Tensor, r: Tensor, scale: Tensor | None, dscale: Tensor | None, inverse: Tensor | None = None
) -> Tensor:
    """Compute dr, given r, which is overwritten; adds to ``dscale``."""
    n = r if inverse is None else r.mul_(inverse)
    product = n * G
    if scale is not None and dscale is not None:
        dscale += product.sum((0, 1))  # (H, Y)
        product.mul_(scale)
        G = G * scale
    if inverse is None:
        return G
    along = product.sum(-1, keepdim=True)  # (B, T, H, 1)
    return torch.addcmul(G, n, along, value=-1, out=product).mul_(inverse)


def _turn(x: Tensor, factors: Factors, out: Tensor) -> Tensor:
    """Write C x + S J x into ``out``."""
    if len(factors) == 1:
        torch.mul(_complex(x), factors[0], out=_complex(out))
        return out
    C, S = factors
    return torch.mul(x, C, out=out).addcmul_(_real(_complex(x) * 1j), S)


def _turn_back(g: Tensor, factors: Factors, out: Tensor) -> None:
    """Write C g - J S g into ``out``."""
    if len(factors) == 1:
        torch.mul(_complex(g), factors[0].conj(), out=_complex(out))
    else:
        C, S = factors
        torch.mul(g, C, out=out).add_(_real(_complex(g * S) * -1j))


def _factors(cos: Tensor, first: Tensor, second: Tensor, x: Tensor) -> Factors:
    """Return C and S, (T, 1, Y), or C + S J as a complex number, (T, 1, Y/2); of each head if they are small."""
    tokens, heads = x.shape[1:3]
    cos, first, second = (table[:tokens, None] for table in (cos, first, second))  # (T, 1, Y/2) each
    factors: Factors = (torch.complex(cos, second),)
    if not torch.equal(first, second):
        factors = _real(torch.complex(cos, cos)), _real(torch.complex(first, second))
    if _tokens_of_a_piece(x) < tokens:
        return factors
    return tuple(factor.expand(-1, heads, -1).contiguous() for factor in factors)


def _complex(x: Tensor) -> Tensor:
    """View pairs as complex numbers."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _real(z: Tensor) -> Tensor:
    """View complex numbers as pairs."""
    return torch.view_as_real(z).flatten(-2)


def _paired(x: Tensor) -> Tensor:
    """Return x, or a copy whose pairs can be viewed as complex numbers."""
    fits = x.stride(-1) == 1 and all(place % 2 == 0 for place in (x.storage_offset(), *x.stride()[:-1]))
    return x if fits else x.contiguous()


def _tokens_of_a_piece(x: Tensor) -> int:
    return max(1, PIECE * torch.get_num_threads() // (x.shape[2] * x.shape[3]))


def _pieces(factors: Factors, *by_row: Tensor) -> Iterator[tuple[Factors, tuple[Tensor, ...]]]:
    """Yield pieces of tensors (B, T, H, ...), tokens of one sequence or whole sequences, with their factors."""
    tokens, many = by_row[0].shape[1], _tokens_of_a_piece(by_row[0])
    if many >= tokens:
        yield from ((factors, some) for some in zip(*(tensor.split(many // tokens) for tensor in by_row), strict=True))
        return
    near = [*zip(*(factor.split(many) for factor in factors), strict=True)]
    for sequence in zip(*(tensor.split(1) for tensor in by_row), strict=True):
        yield from zip(near, zip(*(tensor.split(many, 1) for tensor in sequence), strict=True), strict=True)


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
    "fused" (Triton) and "closed_form" have first derivatives in reverse mode only.

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


WAYS: tuple[Way[Callable[..., tuple[Tensor, ...]]], ...] = (
    triton_way(_fused, widest=WIDEST),
    closed_form_way(_closed_form, order=1, transforms=False, autocast=True, auto_on=("cpu",), auto_order=1),
    Way("reference", lambda inputs, *given: tuple(rotate_by_definition(x, *given) for x in inputs)),
)
