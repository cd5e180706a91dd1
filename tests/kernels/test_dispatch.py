"""What ``choose`` takes of made-up ways, and what it says."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.dispatch import (
    ANY_ORDER,
    EXACT,
    Shapes,
    Way,
    choose,
    derivative_order,
    differentiable,
    triton_way,
)
from paper_repro.kernels.preferences import Speed, prefer, speed

KERNEL = triton_way("kernel", widest=8)
CLOSED = Way("closed_form", "by hand", order=1, dtypes=EXACT, one_dtype=True, autocast=False, empty=False, auto_order=1)
BARE = Way("closed_form", "without gradients", order=0, transforms=False)
DEFINITION = Way("reference", "definition")


def _taken(
    *ways: Way[str], implementation: str = "auto", tensors: tuple[Tensor, ...] | None = None, **options: int
) -> str:
    return choose("op", ways, implementation, tensors or (torch.ones(2, requires_grad=True),), **options)


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")


def test_the_order_is_that_of_the_derivatives_that_may_be_asked_for() -> None:
    leaf, constant = torch.ones(3, requires_grad=True), torch.ones(3)
    assert derivative_order(constant) == 0
    assert derivative_order(constant, leaf) == 1
    with torch.no_grad():
        assert derivative_order(leaf) == 0
    with differentiable(order=2):
        assert derivative_order(constant) == 0
        assert derivative_order(leaf) == 2
        with differentiable(order=1):
            assert derivative_order(leaf) == 2, "an inner scope does not take back what an outer one announced"
        with differentiable(order=3):
            assert derivative_order(leaf) == 3
    assert derivative_order(leaf) == 1


def _inside(transformed: Callable[[Callable[..., Tensor]], Callable[..., object]], *tensors: Tensor) -> int:
    """The order that an op sees within a transform."""
    seen: list[int] = []

    def function(*given: Tensor) -> Tensor:
        seen.append(derivative_order(*given))
        return torch.stack([value.sum() for value in given]).sum()

    transformed(function)(*tensors)
    return seen[-1]


def test_the_order_within_transforms_of_torch_func() -> None:
    func = torch.func
    leaf, constant = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
    assert _inside(func.vmap, constant) == 0
    assert _inside(func.vmap, constant, leaf) == 1
    assert _inside(func.grad, constant) == 1
    assert _inside(func.grad, leaf) == 2
    assert _inside(lambda f: func.vmap(func.grad(f)), leaf) == 2
    assert _inside(lambda f: func.vmap(func.grad(f)), constant) == 1
    assert _inside(lambda f: func.grad(lambda x: func.grad(f)(x).sum()), constant) == 2
    with torch.no_grad():
        assert _inside(func.vmap, leaf) == 0
        assert _inside(func.grad, leaf) == 1
        assert _inside(lambda f: lambda x: func.jvp(f, (x,), (x,)), constant) == ANY_ORDER
    with torch.autograd.forward_ad.dual_level():
        assert derivative_order(constant) == ANY_ORDER


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((torch.ones(2), torch.ones(2).double()), r"it needs one dtype, got torch\.float32, torch\.float64"),
        ((torch.ones(2).bfloat16(),), r"it does not take torch\.bfloat16"),
        ((torch.ones(0),), "a tensor is empty"),
        ((torch.ones(2), torch.ones(2, device="meta")), r"tensors on different devices \(cpu, meta\)"),
    ],
)
def test_what_a_way_does_not_take_goes_to_the_next_and_is_refused_when_insisted_on(
    tensors: tuple[Tensor, ...], message: str
) -> None:
    tensors = tuple(tensor.requires_grad_() for tensor in tensors)
    assert _taken(CLOSED, DEFINITION, tensors=tensors) == "definition"
    with prefer(implementation="closed_form"):
        assert _taken(CLOSED, DEFINITION, tensors=tensors) == "definition"
    with pytest.raises(ValueError, match=f"op: implementation='closed_form' is not possible: {message}; use "):
        _taken(CLOSED, DEFINITION, tensors=tensors, implementation="closed_form")


def test_a_way_may_be_differentiated_by_torch_func_and_not_be_stacked() -> None:
    way = Way("closed_form", "twice", order=2, vmap=False)
    taken: list[str] = []

    def note(x: Tensor) -> Tensor:
        taken.append(_taken(way, DEFINITION, tensors=(x,)))
        return x.sum()

    leaf = torch.ones(2, 3)
    torch.func.grad(note)(leaf)
    torch.func.grad(lambda x: torch.func.grad(note)(x).sum())(leaf)
    torch.func.vmap(torch.func.grad(note))(leaf)
    torch.func.grad(lambda x: torch.func.vmap(note)(x).sum())(leaf)
    torch.func.jvp(note, (leaf,), (leaf,))
    assert taken == ["twice", "twice", "definition", "definition", "definition"]
    with pytest.raises(ValueError, match=r"implementation='closed_form' is not possible: torch\.func\.vmap is active"):
        torch.func.vmap(lambda x: _taken(way, DEFINITION, tensors=(x,), implementation="closed_form"))(leaf)


def test_a_kernel_needs_cuda_and_short_rows() -> None:
    assert _taken(KERNEL, DEFINITION) == "definition"
    with pytest.raises(ValueError, match="it runs on cuda, the tensors are on cpu"):
        _taken(KERNEL, DEFINITION, implementation="fused")
    with pytest.raises(ValueError, match="it takes rows of at most 8, got 9"):
        _taken(KERNEL, DEFINITION, implementation="fused", width=9)


def test_under_the_interpreter_a_kernel_that_is_asked_for_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    exact = (torch.ones(2, dtype=torch.float64, requires_grad=True),)
    assert _taken(KERNEL, DEFINITION, tensors=exact) == "definition"
    assert _taken(KERNEL, DEFINITION, tensors=exact, implementation="fused") == "kernel"
    with prefer(implementation="fused"):
        assert _taken(KERNEL, DEFINITION, tensors=exact) == "kernel"
        assert _taken(KERNEL, DEFINITION, tensors=exact, width=9) == "definition"


def test_a_way_without_gradients_is_refused_where_one_is_asked_for() -> None:
    with pytest.raises(ValueError, match="it has no gradient, and one is asked for"):
        _taken(BARE, DEFINITION, implementation="closed_form")
    with differentiable():
        assert _taken(CLOSED, DEFINITION, implementation="closed_form") == "by hand", "its backward pass says the rest"


def test_a_preference_is_taken_where_the_op_has_it_and_can() -> None:
    with prefer(implementation="reference"):
        assert speed() == Speed(implementation="reference")
        assert _taken(CLOSED, DEFINITION) == "definition"
        assert _taken(CLOSED, DEFINITION, implementation="closed_form") == "by hand", "an argument wins"
        with prefer(recompute=True):
            assert speed() == Speed(implementation="reference", recompute=True)
        with prefer(implementation="fused"):
            assert _taken(CLOSED, DEFINITION) == "by hand", "this op has no fused way: auto decides"
        assert _taken(CLOSED, DEFINITION, preferable=False) == "by hand"
    with prefer(implementation="closed_form"):
        assert _taken(CLOSED, DEFINITION, tensors=(torch.ones(2),)) == "by hand", "where auto would save nothing"
        with differentiable():
            assert _taken(CLOSED, DEFINITION) == "definition"
    assert speed() == Speed()
    with pytest.raises(ValueError, match="one of auto, fused, closed_form, reference, got 'fast'"), prefer("fast"):
        pass


def test_shapes_are_matched_by_the_names_of_their_sizes() -> None:
    shapes = Shapes(h="... D", f="... D", alpha="D|1", bias="")
    shapes.check(torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.ones(1), torch.ones(()))
    shapes.check(torch.ones(4), None, torch.ones(4), None)
    for wrong in ((2, 4), (3, 3, 4), (2, 3, 5), (3, 4)):
        with pytest.raises(ValueError, match=r"shapes must be h \(\.\.\., D\), f \(\.\.\., D\), alpha \(D\|1\)"):
            shapes.check(torch.ones(2, 3, 4), torch.ones(wrong), None, None)


def test_the_compiler_traces_the_choice() -> None:
    """The same ways as without it, but for those that it cannot trace; within torch.func the definition."""
    ways = (
        Way("fused", torch.sin, order=1),
        Way("closed_form", torch.tan, compiler=False),
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
