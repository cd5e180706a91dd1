"""The definition of EBT's attention against loops, in derivatives against finite differences."""

import math

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.self_slot_attention import self_slot_attention

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


def _inputs(
    sequences: int, heads: int, tokens: int, width: int, value_width: int = 0, lead: int = 0, samples: int = 1
) -> list[Tensor]:
    """Query, own key, own value, keys, values; in float64."""
    generator = torch.Generator().manual_seed(5)
    widths = width, width, value_width or width
    rows = [(samples * sequences, heads, tokens, size) for size in widths]
    columns = [(sequences, heads, tokens + lead, size) for size in widths[1:]]
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in (*rows, *columns)]


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("lead", [0, 1])
def test_values_are_those_of_loops_over_rows(lead: int, samples: int) -> None:
    query, own_key, own_value, keys, values = given = _inputs(2, 2, 5, 3, 4, lead, samples)
    out = self_slot_attention(*given, lead, 0.7, implementation="reference")
    for row, head, token in ((r, h, t) for r in range(2 * samples) for h in range(2) for t in range(5)):
        seen = slice(0, token + 1 + lead)
        columns = torch.cat((keys[row % 2, head, seen], own_key[row, head, token : token + 1]))
        read = torch.cat((values[row % 2, head, seen], own_value[row, head, token : token + 1]))
        scores = 0.7 * columns @ query[row, head, token]
        torch.testing.assert_close(out[row, head, token], scores.softmax(0) @ read, rtol=1e-13, atol=1e-13)
    default = self_slot_attention(*given, lead)
    torch.testing.assert_close(default, self_slot_attention(*given, lead, 1 / math.sqrt(3)), rtol=0, atol=0)
