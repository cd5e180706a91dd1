"""What T inner steps keep for the way back: x_t and lse_t of each, and nothing else; and what is alive at once."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.tied_attention import descend, op
from paper_repro.tests.support.ops import kept_bytes

B, J, D, K = 2, 48, 32, 4


def _given(shared: bool = True) -> list[Tensor | None]:
    """x, keys, reading, writing, h d, norm weight."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(B, J, D), (B, J, K, D // K), (D, D), (D, D), (B, J, D), (D,)]
    drawn = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return [value if shared or index != 4 else None for index, value in enumerate(drawn)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("implementation", ["fused", "closed_form"])
def test_each_further_step_keeps_a_state_and_its_normalisers(implementation: str, shared: bool) -> None:
    given, slopes = _given(shared), torch.full((K,), 0.5)
    options: dict[str, Any] = {"tau": 2.0, "slopes": slopes, "implementation": implementation}
    known = [value for value in (*given, slopes) if value is not None]
    kept = [kept_bytes(lambda: descend(*given, num_steps=count, **options), *known) for count in (1, 2, 3)]  # noqa: B023
    state, normalisers, scalars = B * J * D * 4, B * J * K * 4, 2 * 4  # of the two biases that were not given
    assert kept[0] <= normalisers + scalars
    assert kept[1] - kept[0] == kept[2] - kept[1] == state + normalisers


def test_no_tensor_holds_the_scores_of_all_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "ROWS", 8)
    monkeypatch.setattr(op, "PIECE", 8 * J * K)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # each has a piece of its own
    made: list[int] = []
    original = Tensor.new_empty

    def recorded(tensor: Tensor, *shape: int, **options: torch.dtype) -> Tensor:
        out = original(tensor, *shape, **options)
        made.append(out.numel())
        return out

    monkeypatch.setattr(Tensor, "new_empty", recorded)
    descend(*_given(), num_steps=1, tau=2.0, implementation="closed_form").sum().backward()  # type: ignore[arg-type]
    assert made and max(made) <= 2 * 8 * J * K < B * K * J * J / 4
