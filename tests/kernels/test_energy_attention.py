"""Kernel (through Triton's interpreter) and in-place way against the definition, and that against loops and autograd.

Tolerances relative to the largest entry: float64 1e-12, float32 2e-5: sums over a head and up to 150 tokens.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.energy_attention import energy_attention, op
from paper_repro.tests.support.ops import assert_as_defined, assert_same

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
FAST = ("fused", "closed_form")


@pytest.fixture(autouse=True)
def small_pieces(poisoned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-place way takes a few images at a time."""
    monkeypatch.setattr(op, "PIECE", 200)


def _inputs(images: int, heads: int, tokens: int, width: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (images, heads, tokens, width)
    return [2 * torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(2)]


def _apart(query: Tensor, key: Tensor, beside: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Both as CET has them, within rows (B, T, 2 H Y + ...), and these rows."""
    images, heads, tokens, width = query.shape
    rows = torch.full((images, tokens, 2 * heads * width + beside), 7.0, dtype=query.dtype)
    both = rows[..., : 2 * heads * width].unflatten(-1, (2, heads, width)).permute(2, 0, 3, 1, 4)
    return both[0].copy_(query), both[1].copy_(key), rows


@pytest.mark.parametrize("way", FAST)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 7, 5), (1, 2, 25, 16), (1, 1, 121, 64), (1, 2, 128, 3), (1, 1, 70, 90)]
)
def test_values_are_those_of_the_definition(shape: tuple[int, int, int, int], dtype: torch.dtype, way: str) -> None:
    with torch.no_grad():
        assert_as_defined(partial(energy_attention, gamma=0.25), _inputs(*shape, dtype), way, TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["reference", *FAST])
def test_results_may_overwrite_the_inputs_and_nothing_beside_them(implementation: str) -> None:
    inputs = _inputs(2, 2, 35, 3)
    expected = energy_attention(*inputs, 0.5, implementation="reference")
    query, key, rows = _apart(*inputs)
    found = energy_attention(query, key, 0.5, out=(query, key), implementation=implementation)
    assert found[0] is query and found[1] is key
    assert_same(found, expected, 1e-12)
    assert torch.equal(rows[..., 12:], torch.full_like(rows[..., 12:], 7.0))


@pytest.mark.parametrize("implementation", FAST)
def test_large_scores_do_not_overflow(implementation: str) -> None:
    query, key = (300 * value for value in _inputs(1, 1, 20, 4, torch.float32))
    found = energy_attention(query, key, 1.0, implementation=implementation)
    expected = energy_attention(query.double(), key.double(), 1.0, implementation="reference")
    assert_same(found[2:], expected[2:], 2e-5)
    assert all(bool(value.isfinite().all()) for value in found)
