"""Queries and keys as attention reads them: turned by their position, on the unit sphere, scaled.

Legend: B sequences, T tokens, H heads, Y head width, P positions of the tables.
"""

from torch import Tensor

from paper_repro.kernels.dispatch import EXACT, Way, choose, triton_way
from paper_repro.kernels.qk_rotary import closed_form, reference
from paper_repro.kernels.qk_rotary.tables import RotaryTables, check_width

WIDEST = 1024
"""The fused kernel holds whole rows in registers."""


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
    "reference" is the definition, which autograd differentiates to any order; "fused" (Triton) and "closed_form"
    (PyTorch, in pieces that fit in a CPU's cache) have first derivatives in reverse mode only; "auto" takes the kernel
    on CUDA, the closed form on a CPU where gradients are asked for in one dtype outside torch.func and torch.compile,
    else, and where second derivatives may be asked for, the definition.

    Args:
        x: (B, T, H, Y), of any strides: a view of a packed projection is not copied.
        tables: of at least T positions; the first T are read.
        scale: s_qk, (H, Y).
        implementation: see above.

    Returns:
        (B, H, T, Y) in x's dtype: a view of contiguous (B, T, H, Y), the layout of flash attention.

    Raises:
        ValueError: shapes that do not fit, an unknown implementation, or one that is not possible.
        NotImplementedError: a second or forward-mode derivative through the kernel or the closed form.
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
    """Apply ``rotate`` to both with one ``scale``; the fused kernel takes them in one launch.

    Args:
        query, key: (B, T, H, Y); the rest as for ``rotate``.

    Returns:
        Two (B, H, T, Y).

    Raises:
        ValueError, NotImplementedError: as ``rotate``.
    """
    if query.shape != key.shape:
        raise ValueError(f"query and key must have one shape, got {tuple(query.shape)} and {tuple(key.shape)}")
    turned_query, turned_key = _rotate((query, key), tables, scale, normalize, implementation)
    return turned_query, turned_key


def _rotate(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool, implementation: str
) -> tuple[Tensor, ...]:
    _check_shapes(inputs[0], tables, scale)
    given = (*inputs, *tables) if scale is None else (*inputs, *tables, scale)
    turn = choose("qk_rotary", WAYS, implementation, given, width=inputs[0].shape[-1])
    return turn(inputs, tables, scale, normalize)


def _fused(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool
) -> tuple[Tensor, ...]:
    from paper_repro.kernels.qk_rotary import fused

    return fused.rotate(inputs, tables, scale, normalize)


def _closed_form(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool
) -> tuple[Tensor, ...]:
    return closed_form.rotate(inputs, tables, scale, normalize)


def _definition(
    inputs: tuple[Tensor, ...], tables: RotaryTables, scale: Tensor | None, normalize: bool
) -> tuple[Tensor, ...]:
    return tuple(reference.rotate(x, tables, scale, normalize) for x in inputs)


WAYS = (
    triton_way(_fused, widest=WIDEST),
    Way(
        "closed_form",
        _closed_form,
        order=1,
        dtypes=EXACT,
        one_dtype=True,
        transforms=False,
        compiler=False,
        empty=False,
        auto_on=("cpu",),
        auto_order=1,
    ),
    Way("reference", _definition),
)


def _check_shapes(x: Tensor, tables: RotaryTables, scale: Tensor | None) -> None:
    if x.ndim != 4:
        raise ValueError(f"queries and keys must have shape (B, T, H, Y), got {tuple(x.shape)}")
    tokens, heads, width = x.shape[1:]  # x is (B, T, H, Y)
    check_width(width)
    shapes = {tuple(table.shape) for table in tables}
    if len(shapes) > 1 or tables.cos.ndim != 2 or tables.cos.shape[1] * 2 != width:
        found = ", ".join(str(tuple(table.shape)) for table in tables)
        raise ValueError(f"tables must each have shape (P, Y/2) = (P, {width // 2}), got {found}")
    if tokens > len(tables.cos):
        raise ValueError(
            f"{tokens} tokens are more than the {len(tables.cos)} positions of the tables: make longer ones"
        )
    if scale is not None and scale.shape != (heads, width):
        raise ValueError(f"scale must have shape (H, Y) = ({heads}, {width}), got {tuple(scale.shape)}")
