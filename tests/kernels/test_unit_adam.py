"""One Adam step with unit rows: definition against torch's AdamW and a projection, kernels against the definition.

Tolerances, relative to the largest entry: float64 1e-12; float32 2e-6, some ten roundings of 6e-8 each.
"""

import importlib.util
import math

import pytest
import torch
from torch import Tensor

from paper_repro.kernels import unit_adam
from paper_repro.kernels.unit_adam import reference, stock

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
NUMBERS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SHAPES = [(1, 1), (3, 56), (5, 84), (130, 8), (2, 3, 72), (1, 1280), (7, 33)]
VECTORS = [(1,), (37,), (4096,), (5000,), (), (3, 5)]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def _drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype, steps: int = 1) -> list[list[Tensor]]:
    """Parameters, then the gradients of each step."""
    generator = torch.Generator().manual_seed(5)
    return [
        [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
        for _ in range(1 + steps)
    ]


def _stepped(shapes: list[tuple[int, ...]], dtype: torch.dtype, unit: bool, steps: int, how: str) -> list[list[Tensor]]:
    parameters, *gradients = _drawn(shapes, dtype, steps)
    firsts, seconds = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
    for number, gradient in enumerate(gradients, 1):
        before = [value.clone() for value in gradient]
        unit_adam.adam_(parameters, gradient, firsts, seconds, number, **NUMBERS, unit_rows=unit, implementation=how)
        assert all(torch.equal(one, two) for one, two in zip(gradient, before, strict=True))
    return [parameters, firsts, seconds]


def _by_torch(shapes: list[tuple[int, ...]], dtype: torch.dtype, unit: bool, steps: int) -> list[list[Tensor]]:
    parameters, *gradients = _drawn(shapes, dtype, steps)
    optimizer = torch.optim.AdamW(parameters, **NUMBERS, foreach=False)
    for gradient in gradients:
        for parameter, value in zip(parameters, gradient, strict=True):
            parameter.grad = value
        optimizer.step()
        if unit:
            for parameter in parameters:
                parameter.div_(parameter.square().sum(-1, keepdim=True).sqrt())
    states = [optimizer.state[parameter] for parameter in parameters]
    return [parameters, *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))]


def _assert_same(found: list[list[Tensor]], expected: list[list[Tensor]], tolerance: float) -> None:
    for ones, twos in zip(found, expected, strict=True):
        for one, two in zip(ones, twos, strict=True):
            scale = float(two.abs().max())
            torch.testing.assert_close(one, two.to(one.dtype), rtol=tolerance, atol=tolerance * scale)


@pytest.fixture(params=["reference", "auto", pytest.param("fused", marks=needs_triton)])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "reference":
        monkeypatch.setattr(reference, "adam_", None)  # the other two take everything that they are given here
    return str(request.param)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("unit", "shapes"), [(True, SHAPES), (False, VECTORS)])
@pytest.mark.parametrize("steps", [1, 10])
def test_steps_are_those_of_adamw_and_a_projection(
    unit: bool, shapes: list[tuple[int, ...]], dtype: torch.dtype, steps: int, how: str
) -> None:
    if how == "fused" and steps > 1:
        shapes = shapes[1:3]  # the interpreter takes its time
    found = _stepped(shapes, dtype, unit, steps, how)
    _assert_same(found, _by_torch(shapes, dtype, unit, steps), TOLERANCE[dtype] * math.sqrt(steps))
    if unit:
        norms = torch.cat([torch.linalg.vector_norm(rows.double(), dim=-1).flatten() for rows in found[0]])
        assert float((norms - 1).abs().max()) < 4 * torch.finfo(dtype).eps


@needs_triton
@pytest.mark.parametrize("unit", [True, False])
def test_one_launch_takes_aligned_and_unaligned_tensors_and_leaves_their_neighbours_alone(unit: bool) -> None:
    """Views into one buffer, shifted by one number, with NaN between them: a stray write or read would show."""
    shapes = [(5, 24), (3, 24), (300, 24)]
    parameters, gradients = _drawn(shapes, torch.float32)
    expected = _stepped(shapes, torch.float32, unit, 1, "reference")
    for shift in (0, 1):
        tensors = [[_within(value, shift) for value in group] for group in (parameters, gradients)]
        moments = [[_within(torch.zeros_like(value), shift) for value in parameters] for _ in range(2)]
        unit_adam.adam_(*tensors, *moments, 1, **NUMBERS, unit_rows=unit, implementation="fused")
        _assert_same([tensors[0], *moments], expected, TOLERANCE[torch.float32])
        for view in (*tensors[0], *moments[0], *moments[1]):
            assert view._base is not None
            assert int(view._base.isnan().sum()) == view._base.numel() - view.numel()


def _within(value: Tensor, shift: int) -> Tensor:
    buffer = torch.full((value.numel() + 64,), math.nan)
    view = buffer[16 + shift : 16 + shift + value.numel()].view(value.shape)
    return view.copy_(value)


@pytest.mark.parametrize("how", ["reference", "auto"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(how: str) -> None:
    shapes = [(6, 40), (3, 16)]
    found = _stepped(shapes, torch.bfloat16, True, 1, how)
    parameters, gradients = _drawn(shapes, torch.bfloat16)
    wide = [[value.float() for value in group] for group in (parameters, gradients)]
    moments = [[torch.zeros_like(value) for value in wide[0]] for _ in range(2)]
    unit_adam.adam_(*wide, *moments, 1, **NUMBERS, unit_rows=True, implementation="reference")
    for ones, twos in zip(found, (wide[0], *moments), strict=True):
        assert all(torch.equal(one, two.bfloat16()) for one, two in zip(ones, twos, strict=True))


@pytest.mark.parametrize("how", ["reference", "auto", pytest.param("fused", marks=needs_triton)])
def test_moments_may_be_wider_than_parameters(how: str) -> None:
    """Half precision stands for bfloat16, which Triton's interpreter cannot."""
    parameters, gradients = _drawn([(6, 40)], torch.float16)
    moments = [[torch.zeros(6, 40)] for _ in range(2)]
    unit_adam.adam_(parameters, gradients, *moments, 1, **NUMBERS, unit_rows=True, implementation=how)
    wide, (gradient,) = ([value.float() for value in group] for group in _drawn([(6, 40)], torch.float16))
    expected = [[torch.zeros(6, 40)] for _ in range(2)]
    unit_adam.adam_(wide, [gradient], *expected, 1, **NUMBERS, unit_rows=True, implementation="reference")
    _assert_same(moments, expected, TOLERANCE[torch.float32])
    # Two numbers that differ in their last bit may fall to two sides of a rounding to 11 bits.
    _assert_same([parameters], [wide], 2.0**-10)


def test_what_the_kernels_do_not_take_is_computed_by_the_definition() -> None:
    (parameter,), (gradient,) = _drawn([(6, 8)], torch.float64)
    transposed = parameter.T.contiguous().T
    moments = [torch.zeros_like(transposed) for _ in range(4)]
    for value, pair in ((transposed, moments[:2]), (parameter, moments[2:])):
        unit_adam.adam_([value], [gradient], *([moment] for moment in pair), 1, **NUMBERS, unit_rows=True)
    assert not transposed.is_contiguous()
    torch.testing.assert_close(transposed, parameter, rtol=1e-12, atol=0)
    empty = [[torch.zeros(0, 8)] for _ in range(4)]
    unit_adam.adam_(*empty, 1, **NUMBERS, unit_rows=True)
    unit_adam.adam_([], [], [], [], 1, **NUMBERS, unit_rows=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_projection_divides_by_the_norm_computed_in_float32(dtype: torch.dtype) -> None:
    value = _drawn([(4, 5, 12)], dtype)[0][0]
    wide = value.to(torch.float64 if dtype == torch.float64 else torch.float32)
    expected = (wide / wide.square().sum(-1, keepdim=True).sqrt()).to(dtype)
    found = unit_adam.project_rows_(value)
    assert found is value
    torch.testing.assert_close(value, expected, rtol=torch.finfo(dtype).eps * 2, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradients": [torch.zeros(3, 3)]}, r"one shape, got \(2, 3\), \(3, 3\)"),
        ({"step": 0}, "step must be 1 or more, got 0"),
        ({"implementation": "fast"}, "implementation must be one of auto, fused, reference, got 'fast'"),
        ({key: [torch.zeros(3)] for key in ("parameters", "gradients", "first_moments", "second_moments")}, "matrix"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, object], message: str) -> None:
    names = ("parameters", "gradients", "first_moments", "second_moments")
    arguments = {**{name: [torch.ones(2, 3)] for name in names}, "step": 1, "unit_rows": True, **NUMBERS, **change}
    with pytest.raises(ValueError, match=message):
        unit_adam.adam_(**arguments)
    with pytest.raises(ValueError, match="unit rows need a matrix"):
        unit_adam.project_rows_(torch.ones(3))


@needs_triton
def test_a_fused_step_that_is_not_possible_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[torch.ones(8, 3).T] for _ in range(4)]
    with pytest.raises(ValueError, match=r"contiguous tensors .* got torch\.float32 \(3, 8\)"):
        unit_adam.adam_(*rows, 1, **NUMBERS, unit_rows=True, implementation="fused")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match=r"one dtype, float32 or float64, got torch\.bfloat16 \(2, 3\)"):
        _stepped([(2, 3)], torch.bfloat16, True, 1, "fused")
    with pytest.raises(ValueError, match="it runs on cuda, the tensors are on meta / it runs on cpu"):
        rows = [[torch.ones(2, 3, device="meta")] for _ in range(4)]
        unit_adam.adam_(*rows, 1, **NUMBERS, unit_rows=True, implementation="fused")


def test_on_a_cpu_fused_is_torch_s_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    called: list[int] = []
    adamw = stock.adamw
    monkeypatch.setattr(stock, "adamw", lambda *given, **options: (called.append(1), adamw(*given, **options))[1])
    found = _stepped([(2, 3)], torch.float64, True, 1, "fused")
    _assert_same(found, _stepped([(2, 3)], torch.float64, True, 1, "reference"), TOLERANCE[torch.float64])
    assert called
