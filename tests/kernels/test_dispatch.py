"""What ``choose`` takes of made-up ways, and what it says."""

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Way, choose, closed_form_way, differentiable, triton_way
from paper_repro.kernels.preferences import Speed, prefer, speed

KERNEL = triton_way("kernel", widest=8)
CLOSED = closed_form_way("by hand", order=1, auto_order=1)
DEFINITION = Way("reference", "definition")


def _taken(
    *ways: Way[str], implementation: str = "auto", tensors: tuple[Tensor, ...] | None = None, **options: int
) -> str:
    return choose("op", ways, implementation, tensors or (torch.ones(2, requires_grad=True),), **options)


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((torch.ones(2), torch.ones(2).double()), r"it needs one dtype, got torch\.float32, torch\.float64"),
        ((torch.ones(2).bfloat16(),), r"it does not take torch\.bfloat16"),
        ((torch.ones(0),), "a tensor is empty"),
        ((torch.ones(2), torch.ones(2, device="meta")), r"tensors on different devices \(cpu, meta\)"),
    ],
)
def test_what_a_way_does_not_take_goes_to_the_next_and_is_refused_when_insisted_on(tensors, message):
    tensors = tuple(tensor.requires_grad_() for tensor in tensors)
    assert _taken(CLOSED, DEFINITION, tensors=tensors) == "definition"
    with pytest.raises(ValueError, match=f"op: implementation='closed_form' is not possible: {message}; use "):
        _taken(CLOSED, DEFINITION, tensors=tensors, implementation="closed_form")


def test_a_kernel_needs_cuda_and_short_rows() -> None:
    assert _taken(KERNEL, DEFINITION) == "definition"
    with pytest.raises(ValueError, match="it runs on cuda, the tensors are on cpu"):
        _taken(KERNEL, DEFINITION, implementation="fused")
    with pytest.raises(ValueError, match="it takes rows of at most 8, got 9"):
        _taken(KERNEL, DEFINITION, implementation="fused", width=9)


def test_a_preference_for_the_definition_is_taken_unless_an_argument_says_otherwise() -> None:
    with prefer(implementation="reference"):
        assert speed() == Speed(implementation="reference")
        assert _taken(CLOSED, DEFINITION) == "definition"
        assert _taken(CLOSED, DEFINITION, implementation="closed_form") == "by hand", "an argument wins"
        with prefer(recompute=True):
            assert speed() == Speed(implementation="reference", recompute=True)
    with differentiable():
        assert _taken(CLOSED, DEFINITION) == "definition"
    assert speed() == Speed()
    with pytest.raises(ValueError, match="one of auto, reference, got 'fast'"), prefer(implementation="fast"):
        pass


def test_the_compiler_traces_the_choice() -> None:
    """The same ways as without it, but for those that it cannot trace; within torch.func the definition."""
    ways = (
        Way("fused", torch.sin, order=1),
        Way("closed_form", torch.tan, by_hand=True),
        Way("reference", torch.cos),
    )

    def op(x: Tensor) -> Tensor:
        return choose("op", ways, "auto", (x,))(x)

    leaf = torch.linspace(0, 1, 3, requires_grad=True)
    compiled = torch.compile(op, backend="eager", fullgraph=True)
    assert torch.equal(compiled(leaf), leaf.sin())
    with differentiable():
        assert torch.equal(compiled(leaf), leaf.cos())
        assert torch.equal(op(leaf), leaf.tan())
    with prefer(implementation="reference"):
        assert torch.equal(compiled(leaf), leaf.cos())
    inner = torch.compile(torch.func.grad(lambda x: op(x).sum()), backend="eager", fullgraph=True)
    assert torch.equal(inner(leaf), -leaf.sin())
