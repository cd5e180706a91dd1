"""Kernel (through Triton's interpreter) and closed form against the definition, that against autograd and golden files.

Tolerances relative to the largest entry: float64 1e-12, float32 5e-6: sums over a head and over fewer than 100 tokens.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.qk_rotary import rotate, triton
from paper_repro.models.common import RotaryTables, published_tables, textbook_tables
from paper_repro.tests.support.ops import ON_A_GPU, assert_as_defined, assert_near

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}
FAST = ("fused", "closed_form")
TABLES = {"textbook": textbook_tables, "published": published_tables}


@pytest.fixture(autouse=True)
def few_programs(poisoned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's programs are few: each takes several tokens."""
    for name in ("WARPS_FORWARD", "WARPS_BACKWARD"):
        monkeypatch.setattr(triton, name, 3)


def _inputs(*shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The packed projection (B, T, 3, H, Y) and scales (H, Y) of both signs."""
    batch, tokens, heads, width = shape
    generator = torch.Generator().manual_seed(6)
    packed = torch.randn(batch, tokens, 3, heads, width, dtype=torch.float64, generator=generator)
    scale = torch.linspace(-0.5, 2, heads * width, dtype=torch.float64).view(heads, width)
    return [packed.to(dtype), scale.to(dtype)]


def _rotation(tables: RotaryTables, normalize: bool) -> Callable[..., Tensor]:
    """The op as a function of the packed projection and of the scales."""

    def rotated(packed: Tensor, scale: Tensor | None = None, implementation: str = "auto") -> Tensor:
        own = RotaryTables(*(table.to(torch.promote_types(packed.dtype, table.dtype)) for table in tables))
        return rotate(packed[:, :, 1], own, scale, normalize, implementation)

    return rotated


def _turned(x: Tensor, angle: Callable[[int, int], float]) -> Tensor:
    """Textbook RoPE of x (B, T, H, Y), pair by pair; (B, H, T, Y)."""
    out = torch.empty_like(x)
    for t in range(x.shape[1]):
        for i in range(x.shape[3] // 2):
            cos, sin = math.cos(angle(t, i)), math.sin(angle(t, i))
            a, b = x[:, t, :, 2 * i], x[:, t, :, 2 * i + 1]
            out[:, t, :, 2 * i], out[:, t, :, 2 * i + 1] = cos * a - sin * b, sin * a + cos * b
    return out.transpose(1, 2)


@pytest.mark.parametrize("implementation", ["reference", *FAST])
def test_textbook_positions_turn_pairs_by_an_angle_that_grows_with_the_position(implementation: str) -> None:
    packed, scale = _inputs(2, 7, 3, 10)
    tables = textbook_tables(9, 10, dtype=torch.float64)
    turned = _turned(packed[:, :, 0], lambda t, i: t * 10000.0 ** (-2 * i / 10))
    found = rotate(packed[:, :, 0], tables, implementation=implementation)
    torch.testing.assert_close(found, turned, rtol=1e-13, atol=1e-13)
    turned = turned / turned.norm(dim=-1, keepdim=True) * scale[:, None]
    found = rotate(packed[:, :, 0], tables, scale, True, implementation)
    torch.testing.assert_close(found, turned, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("scaled", "normalize"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 1, 1, 2), "textbook"),
        ((2, 5, 3, 56), "published"),
        ((1, 3, 12, 72), "textbook"),
        ((3, 2, 6, 84), "published"),
        ((5, 2, 2, 32), "published"),
    ],
)
def test_values_and_gradients_are_those_of_the_definition(shape, kind, scaled, normalize, dtype, implementation):
    tables, inputs = TABLES[kind](shape[1] + 2, shape[-1], dtype=dtype), _inputs(*shape, dtype=dtype)[: 1 + scaled]
    assert_as_defined(_rotation(tables, normalize), inputs, implementation, TOLERANCE[dtype])


@ON_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("scaled", "normalize"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(3, 1100, 16, 64), (2, 130, 20, 72), (1, 40, 3, 128)])
def test_on_a_gpu(shape: tuple[int, ...], scaled: bool, normalize: bool, dtype: torch.dtype) -> None:
    packed, scale = (value.cuda() for value in _inputs(*shape))
    tables = RotaryTables(*(table.cuda() for table in textbook_tables(shape[1], shape[-1])))
    inputs = [packed.to(dtype), scale.float()][: 1 + scaled]
    assert_near(_rotation(tables, normalize), inputs, "fused")
