"""EBT's and causal attention by Triton (through its interpreter), against their definitions.

Values, first and second derivatives, in float64; the tolerance is relative to the largest entry.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.kernels.dispatch import differentiable, launching_nothing
from paper_repro.kernels.preferences import prefer
from paper_repro.kernels.self_slot_attention import self_slot_attention
from paper_repro.tests.support.ops import assert_same
from paper_repro.training.counting import peak_bytes

pytestmark = pytest.mark.usefixtures("poisoned")
Attend = Callable[..., Tensor]


class Size(NamedTuple):
    """B sequences, H heads, T tokens, Y channels, Z of the values; lead; N samples; with a column of one's own."""

    sequences: int
    heads: int
    tokens: int
    width: int
    value_width: int
    lead: int = 0
    samples: int = 1
    own: bool = True

    def leaves(self) -> list[Tensor]:
        """Query, own key, own value, keys, values; without own ones query, keys, values."""
        generator = torch.Generator().manual_seed(5)
        rows = [(self.samples * self.sequences, self.heads, self.tokens, self.width)] * (2 if self.own else 1)
        rows += [(*rows[0][:3], self.value_width)] if self.own else []
        columns = [
            (self.sequences, self.heads, self.tokens + self.lead, width) for width in (self.width, self.value_width)
        ]
        drawn = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in (*rows, *columns)]
        return [value.requires_grad_() for value in drawn]

    def attend(self, implementation: str) -> Attend:
        if self.own:
            return lambda *given: self_slot_attention(*given, self.lead, 0.4, implementation)

        def attend(*given: Tensor) -> Tensor:
            with differentiable():  # below second derivatives "fused" is torch's own
                return causal_attention(*given, 0.4, 0.0, implementation)

        return attend


SIZES = [
    Size(2, 1, 1, 8, 8),
    Size(1, 2, 7, 20, 12, lead=1),
    Size(1, 1, 33, 64, 48),
    Size(2, 1, 11, 5, 9, lead=1, samples=2),
    Size(1, 1, 17, 40, 40, lead=2, samples=2),
    Size(1, 2, 1, 3, 3, own=False),
    Size(2, 1, 19, 24, 17, own=False),
]
SMALL = Size(1, 2, 7, 3, 4, lead=1)


def _energy(attend: Attend, *given: Tensor) -> Tensor:
    """A function of o whose second derivatives are not 0."""
    out = attend(*given).double()
    return (
        out.square() * torch.cos(torch.arange(out.numel(), dtype=out.dtype, device=out.device)).reshape(out.shape)
    ).sum()


def _along(tensors: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """The sum of the tensors' products with numbers that are all different."""
    return sum(
        (
            (torch.sin(torch.arange(t.numel(), dtype=torch.float64, device=t.device) + 1) * t.flatten()).sum()
            for t in tensors
        ),
        torch.zeros((), dtype=torch.float64, device=tensors[0].device),
    )


def _first(attend: Attend, leaves: list[Tensor], rows: int, way: str) -> tuple[Tensor, ...]:
    """The gradient by the first ``rows`` leaves; the others are captured."""
    if way == "torch.func":
        captured = leaves[rows:]
        return torch.func.grad(lambda given: _energy(attend, *given, *captured))(tuple(leaves[:rows]))
    return torch.autograd.grad(_energy(attend, *leaves), leaves[:rows], create_graph=True)


def _outcome(attend: Attend, leaves: list[Tensor], rows: int, way: str) -> list[Tensor]:
    """o, its gradient by the first ``rows`` leaves, and the gradient of that by all leaves."""
    first = _first(attend, leaves, rows, way)
    second = torch.autograd.grad(_along(first), leaves, materialize_grads=True)
    return [value.detach() for value in (attend(*leaves), *first, *second)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["autograd", "torch.func"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_derivatives_are_those_of_the_definition(size: Size, way: str) -> None:
    """The first gradient by the rows alone, as EBT takes it, and by everything."""
    leaves = size.leaves()
    for rows in (3 if size.own else 1, len(leaves)):
        expected = _outcome(size.attend("reference"), leaves, rows, "autograd")
        assert_same(_outcome(size.attend("fused"), leaves, rows, way), expected, 1e-12, least=1.0)


@pytest.mark.parametrize("own", [True, False])
def test_a_third_derivative_is_refused(own: bool) -> None:
    size = SMALL if own else SMALL._replace(own=False, lead=0)
    leaves = size.leaves()
    first = _first(size.attend("fused"), leaves, 1, "autograd")
    (second,) = torch.autograd.grad(_along(first), leaves[0], create_graph=True)
    message = "AttentionCurvature has first and second derivatives in reverse mode only: .*differentiable.order=3."
    with pytest.raises(NotImplementedError, match=message):
        torch.autograd.grad(second.sum(), leaves[0])


@pytest.mark.parametrize("own", [True, False])
def test_memory_of_second_derivatives_is_linear_in_tokens(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def peak(tokens: int, implementation: str) -> int:
        size = Size(1, 1, tokens, 8, 8, lead=int(own), own=own)
        leaves = [leaf.detach().float().to("meta").requires_grad_() for leaf in size.leaves()]
        with prefer(device="cuda"), launching_nothing():
            return peak_bytes(lambda: _outcome(size.attend(implementation), leaves, 3 if own else 1, "torch.func"))

    ours, definition = ([peak(tokens, way) for tokens in (512, 1024)] for way in ("fused", "reference"))
    assert ours[1] <= 2.1 * ours[0]
    assert definition[1] >= 3 * definition[0]
    assert ours[1] < 1024 * 1024 * 4 < definition[1] / 4
