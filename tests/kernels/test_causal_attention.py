"""Against the definition, an explicit softmax; tolerances are those of sums over at most 40 terms of order one:
float64 1e-12, float32 1e-5."""

import math

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.tests.support.ops import assert_same, outcome

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
PERFORMANCE_DROP = "There is a performance drop"


def _definition(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ value


IMPLEMENTATIONS = ("auto", "fused", "reference")


def _inputs(*shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
@pytest.mark.parametrize("shape", [(2, 1, 33, 8), (3, 2, 5, 7), (1, 1, 1, 3), (1, 2, 63, 5)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_values_and_gradients_are_those_of_an_explicit_softmax(implementation, shape, scale, dtype):
    inputs = _inputs(*shape, dtype=dtype)
    found = outcome(causal_attention, inputs, scale=scale, implementation=implementation)
    assert_same(found, outcome(_definition, inputs, scale=scale), TOLERANCE[dtype])


@pytest.mark.filterwarnings(f"error:{PERFORMANCE_DROP}")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 0, 2), (0, None, None), (None, 0, 0)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_under_vmap_gradients_reach_the_stacked_leaves(implementation, in_dims, dtype):
    leaves = [
        value if dim is not None else value[0]
        for value, dim in zip(_inputs(4, 2, 3, 9, 5, dtype=dtype), in_dims, strict=True)
    ]
    moved = [
        value if dim is None else value.movedim(0, dim).contiguous() for value, dim in zip(leaves, in_dims, strict=True)
    ]

    one_by_one = torch.func.vmap(lambda *t: _definition(*t, 1.0), in_dims)
    stacked = torch.func.vmap(lambda *t: causal_attention(*t, 1.0, 0.0, implementation), in_dims)
    assert_same(outcome(stacked, moved), outcome(one_by_one, moved), TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dropout_acts_on_probabilities_and_is_not_shared_among_stacked_models(implementation: str) -> None:
    query, key, _ = _inputs(1, 1, 6, 4)
    torch.manual_seed(0)
    identity = torch.eye(6, dtype=torch.float64)[None, None]
    probabilities = causal_attention(query, key, identity, 1.0, 0.5, implementation)
    kept = probabilities != 0
    exact = _definition(query, key, identity, 1.0)
    torch.testing.assert_close(probabilities[kept], 2 * exact[kept], rtol=1e-12, atol=0)
    assert 0 < int(kept.sum()) < 21
    with pytest.raises(RuntimeError, match="random"):
        torch.func.vmap(lambda *t: causal_attention(*t, 1.0, 0.5, implementation))(*_inputs(2, 1, 1, 6, 4))
