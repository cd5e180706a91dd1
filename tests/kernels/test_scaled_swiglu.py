"""The kernel and the folding of scales against the definition.

Tolerances, relative to the largest entry: float64 1e-12, float32 5e-6, for a few roundings and sums over some tokens;
half precision by relative norm, 1e-2, which is some roundings of 2^-9.
"""

import os

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.scaled_swiglu import op, scaled_swiglu, scaled_swiglu_of_product, triton

TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}
SCALES = {"both": ("M", "M"), "u": ("M", None), "nu": (None, "M"), "numbers": ("1", "1"), "neither": (None, None)}


def _inputs(
    shape: tuple[int, ...] = (3, 4), half: int = 5, scales: str = "both", dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(9)
    pre = 3 * torch.randn(*shape, 2 * half, generator=generator, dtype=torch.float64)
    drawn = [torch.rand(half, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2)]
    sizes = {"M": half, "1": 1}
    chosen = [None if size is None else scale[: sizes[size]] for scale, size in zip(drawn, SCALES[scales], strict=True)]
    return [None if value is None else value.to(dtype) for value in (pre, *chosen)]


def _found(inputs: list[Tensor | None], implementation: str) -> list[Tensor]:
    """The result, and the gradients along fixed weights."""
    leaves = [None if value is None else value.detach().clone().requires_grad_() for value in inputs]
    assert leaves[0] is not None
    out = scaled_swiglu(leaves[0], leaves[1], leaves[2], implementation)
    weights = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape).to(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [leaf for leaf in leaves if leaf is not None])]


def _assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance * float(two.abs().max()))


def _wide(inputs: list[Tensor | None]) -> list[Tensor | None]:
    return [None if value is None else value.double() for value in inputs]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("shape", "half"), [((), 1), ((1,), 56), ((3, 7), 84), ((5,), 1100)])
def test_values_and_gradients_are_those_of_the_definition(
    shape: tuple[int, ...], half: int, dtype: torch.dtype, scales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "PROGRAMS", 4)  # several tokens a program
    inputs = _inputs(shape, half, scales, dtype)
    found = _found(inputs, "fused")
    assert all(value.dtype == dtype for value in found)
    _assert_same([value.double() for value in found], _found(_wide(inputs), "reference"), TOLERANCE[dtype])


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_inputs_and_gradients_need_not_be_contiguous(implementation: str) -> None:
    pre, scale_u, scale_nu = _inputs((4, 3), 6)
    assert pre is not None
    for strided in (pre.transpose(0, 1), torch.stack([pre, pre], -1)[..., 0], torch.cat([pre, pre], -1)[..., :12]):
        leaf = strided.detach().requires_grad_()
        scaled_swiglu(leaf, scale_u, scale_nu, implementation).sum().backward()  # a gradient of stride 0
        plain = strided.contiguous().detach().requires_grad_()
        scaled_swiglu(plain, scale_u, scale_nu, "reference").sum().backward()
        torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-12, atol=1e-12)


def test_the_kernel_takes_mixed_dtypes() -> None:
    pre, scale_u, scale_nu = _inputs((5,), 84)
    assert pre is not None
    assert scale_u is not None
    inputs = [pre.float(), scale_u.float(), scale_nu]
    found = _found(inputs, "fused")
    assert [value.dtype for value in found] == [torch.float32] * 3 + [torch.float64]
    _assert_same([value.double() for value in found], _found(_wide(inputs), "reference"), 5e-6)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_gradcheck(implementation: str) -> None:
    leaves = [value.requires_grad_() for value in _inputs((2,), 3) if value is not None]
    assert torch.autograd.gradcheck(lambda *values: scaled_swiglu(*values, implementation=implementation), leaves)
    if implementation == "reference":
        assert torch.autograd.gradgradcheck(lambda *values: scaled_swiglu(*values, implementation="reference"), leaves)


@pytest.mark.parametrize("implementation", ["fused", "reference"])
def test_large_pre_activations_stay_finite(implementation: str) -> None:
    pre = torch.tensor([[1e4, -1e4, 1e4, -1e4, 1e4, 1e4, -1e4, -1e4]])
    out, gradient = _found([pre, None, None], implementation)
    assert out.tolist() == [[1e8, -1e8, 0, 0]]
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("implementation", ["auto", "fused"])
def test_behind_a_product_values_and_gradients_are_those_of_the_definition(implementation: str, scales: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 3, 4), (10, 4)))
    given = [x, weight, *_inputs((1,), 5, scales)[1:]]

    def found(implementation: str) -> list[Tensor]:
        leaves = [None if value is None else value.detach().clone().requires_grad_() for value in given]
        out = scaled_swiglu_of_product(*leaves, implementation=implementation)
        along = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
        return [out.detach(), *torch.autograd.grad(out, [leaf for leaf in leaves if leaf is not None], along)]

    _assert_same(found(implementation), found("reference"), 1e-12)


@pytest.mark.parametrize(("dtype", "is_folded"), [(torch.float32, True), (torch.bfloat16, False)], ids=str)
def test_weights_of_half_precision_are_not_folded(
    dtype: torch.dtype, is_folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor | None] = []
    define = op.scaled_swiglu_reference
    monkeypatch.setattr(op, "scaled_swiglu_reference", lambda *given: (seen.extend(given[1:]), define(*given))[1])
    x, weight = (torch.ones(shape, dtype=dtype) for shape in ((2, 3), (8, 3)))
    scaled_swiglu_of_product(x, weight, torch.ones(4), torch.ones(1))
    assert [scale is None for scale in seen] == [is_folded] * 2


@pytest.mark.parametrize("index", [0, 1, 2])
def test_second_and_forward_mode_derivatives_are_refused(index: int) -> None:
    inputs = [value for value in _inputs((4,)) if value is not None]
    leaf = inputs[index].requires_grad_()
    out = scaled_swiglu(*inputs, implementation="fused")
    (gradient,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="implementation='reference'"):
        gradient.sum().backward()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="reverse mode only"):
        inputs[index] = torch.autograd.forward_ad.make_dual(leaf.detach(), torch.ones_like(leaf))
        scaled_swiglu(*inputs, implementation="fused")


def test_transforms_of_torch_func_take_the_definition() -> None:
    pre, scale_u, scale_nu = _inputs((3, 4))
    assert pre is not None
    per_model = torch.func.vmap(torch.func.grad(lambda value: scaled_swiglu(value, scale_u, scale_nu).sum()))(pre)
    leaf = pre.clone().requires_grad_()
    scaled_swiglu(leaf, scale_u, scale_nu).sum().backward()
    torch.testing.assert_close(per_model, leaf.grad, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"a transform of torch\.func is active"):
        torch.func.vmap(lambda value: scaled_swiglu(value, implementation="fused"))(pre)


def test_half_precision_is_computed_in_float32_and_returned_as_it_came() -> None:
    pre, scale_u, scale_nu = _inputs((50,), 64)
    assert pre is not None
    inputs = [pre.bfloat16(), *(value.float() for value in (scale_u, scale_nu) if value is not None)]
    found = _found([*inputs], "auto")
    assert [value.dtype for value in found] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    for one, two in zip(found, _found(_wide([*inputs]), "reference"), strict=True):
        assert float((one.double() - two).norm() / two.norm()) < 1e-2


def test_no_tokens_give_an_empty_result() -> None:
    assert scaled_swiglu(torch.zeros(0, 3, 8)).shape == (0, 3, 4)


@pytest.mark.parametrize(
    ("pre", "scales", "implementation", "message"),
    [
        (torch.zeros(3, 8), (None, None), "fast", "must be one of auto, fused, reference, got 'fast'"),
        (torch.zeros(3, 7), (None, None), "auto", r"pre \(\.\.\., 2M\) .* got \(3, 7\)"),
        (torch.zeros(()), (None, None), "auto", "shapes must be"),
        (torch.zeros(3, 8), (torch.ones(8), None), "auto", r"got \(3, 8\), \(8,\)"),
        (torch.zeros(3, 8), (None, torch.ones(4, 1)), "auto", "shapes must be"),
        (torch.zeros(0, 8), (None, None), "fused", "a tensor is empty"),
        (torch.zeros(3, 8, dtype=torch.complex64), (None, None), "fused", r"does not take torch\.complex64"),
    ],
)
def test_wrong_arguments_are_refused(
    pre: Tensor, scales: tuple[Tensor | None, Tensor | None], implementation: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        scaled_swiglu(pre, *scales, implementation=implementation)


def test_fused_says_that_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="it runs on cuda, the tensors are on cpu"):
        scaled_swiglu(torch.zeros(3, 8), implementation="fused")


@pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1", reason="compiled kernels need a GPU"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("half", [84, 1100, 5120])
def test_on_a_gpu(dtype: torch.dtype, scales: str, half: int) -> None:
    inputs = [None if value is None else value.cuda() for value in _inputs((1100,), half, scales)]
    assert inputs[0] is not None
    cast = [inputs[0].to(dtype), *inputs[1:]]
    cast[1:] = [None if value is None else value.float() for value in cast[1:]]
    for one, two in zip(_found(cast, "fused"), _found(inputs, "reference"), strict=True):
        assert float((one.double() - two).norm() / two.norm()) < 1e-2
