import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

from paper_repro.kernels.preferences import prefer
from paper_repro.models import cem
from paper_repro.models.cem import CEMAttention

PRECONDITIONERS = {"none": "none", "diag": "diagonal", "dlr": "diagonal_low_rank"}


def _double(module: nn.Module) -> nn.Module:
    """In float64, every parameter away from its starting value."""
    torch.manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter.data.double()) * 0.4 + parameter.data
    return module


def _golden_model(golden) -> cem.CEMMLP:  # type: ignore[no-untyped-def]
    case, weight = golden.case, golden.shared("W")
    preconditioner = PRECONDITIONERS[case["precond"]]
    model = cem.CEMMLP(
        width=weight.shape[1],
        hidden=weight.shape[0],
        num_steps=case["T"],
        activation=case["act"],
        norm_context=True,
        norm_inside=case["norm_inside"],
        start=case["start"],
        preconditioner=preconditioner,
        rank=golden.shared("pm_U").shape[1] if case["precond"] == "dlr" else None,
        step_size=case["eta"],
    ).double()
    names = {"context_weight": "W", "reading_weight": "Vm", "norm_weight": "g1"}
    if case["precond"] != "none":
        names["preconditioner.diagonal"] = "pm_p"
    if case["precond"] == "dlr":
        names |= {"preconditioner.left": "pm_U", "preconditioner.right": "pm_V"}
    model.load_state_dict({ours: golden.shared(theirs) for ours, theirs in names.items()}, strict=True)
    return model


def _assert_golden(found: Tensor, expected: Tensor) -> None:
    """1e-9 of each number, or of the largest where one is a difference of larger ones."""
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.golden("cem", "cem_mlp*.npz")
def test_golden_cem_mlp_output_energies_and_states(golden) -> None:  # type: ignore[no-untyped-def]
    model = _golden_model(golden)
    trace = model.trace(golden.shared("hraw"))
    _assert_golden(model(golden.shared("hraw")).detach(), golden.expected("out"))
    _assert_golden(trace.energies.detach(), golden.expected("energy"))
    _assert_golden(trace.states[-1].detach(), golden.expected("out"))


@pytest.mark.golden("cem", "cem_mlp*.npz")
def test_golden_cem_mlp_context_and_first_update(golden) -> None:  # type: ignore[no-untyped-def]
    model, stream = _golden_model(golden), golden.shared("hraw")
    context = model.context(stream)
    _assert_golden(context.detach(), golden.shared("h"))
    start = context if golden.case["start"] == "normed" else stream
    _assert_golden(model.update(start, context).detach(), golden.expected("first_update"))


@pytest.mark.golden("cem", "cem_mlp*.npz")
def test_golden_cem_mlp_potential(golden) -> None:  # type: ignore[no-untyped-def]
    activation = golden.case["act"]
    _assert_golden(cem.POTENTIALS[activation](golden.shared("phi_x")), golden.shared(f"phi_{activation}"))


def _exact_silu_potential(x: float) -> mpmath.mpf:
    t = mpmath.mpf(x)
    return t * mpmath.log1p(mpmath.exp(t)) + mpmath.polylog(2, -mpmath.exp(t)).real


def _exact_gelu_potential(x: float) -> mpmath.mpf:
    t = mpmath.mpf(x)
    return ((t * t - 1) * mpmath.ncdf(t) + t * mpmath.npdf(t)) / 2


@pytest.mark.parametrize(
    ("potential", "exact"),
    [(cem.silu_potential, _exact_silu_potential), (cem.gelu_potential, _exact_gelu_potential)],
)
def test_potential_to_the_last_digits(potential: Callable[[Tensor], Tensor], exact: Callable[[float], float]) -> None:
    x = torch.cat([torch.linspace(-36, 36, 97), torch.linspace(-2, 2, 41), torch.tensor([1e-9, -1e-9, 0.0])]).double()
    with mpmath.workdps(40):
        errors = [
            float(abs(found - exact(at)) / max(1, abs(exact(at))))
            for at, found in zip(x.tolist(), potential(x).tolist(), strict=True)
        ]
    assert max(errors) < 2e-15


def test_silu_potential_keeps_its_relative_accuracy_in_the_left_tail() -> None:
    x = -torch.linspace(0, 300, 61, dtype=torch.float64)
    with mpmath.workdps(60):
        for at, found in zip(x.tolist(), cem.silu_potential(x).tolist(), strict=True):
            assert abs(found / _exact_silu_potential(at) - 1) < 2e-15


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_autograd_of_the_potential_is_the_activation_and_its_slope(activation: str) -> None:
    x = torch.cat([torch.linspace(-40, 40, 161), torch.zeros(1)]).double().requires_grad_()
    (first,) = torch.autograd.grad(cem.POTENTIALS[activation](x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    act = cem.ACTIVATIONS[activation](x)
    (slope,) = torch.autograd.grad(act.sum(), x)
    torch.testing.assert_close(first, act, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(second, slope, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("norm_inside", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_update_is_minus_the_gradient_of_the_energy(activation: str, norm_inside: bool) -> None:
    block = _double(cem.CEMMLP(6, 9, activation=activation, norm_inside=norm_inside))
    context, x = torch.randn(2, 5, 6).double(), 3 * torch.randn(2, 5, 6).double()
    u = block.point(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(block.energy(u, context).sum(), u)
    torch.testing.assert_close(block.update(x, context).detach(), -gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["diagonal", "diagonal_low_rank"])
def test_preconditioned_update_is_minus_p_times_the_gradient(kind: str) -> None:
    block = _double(cem.CEMMLP(6, 9, preconditioner=kind, rank=2 if kind == "diagonal_low_rank" else None))
    p = block.preconditioner
    matrix = torch.diag(nn.functional.softplus(math.sqrt(6) * p.diagonal))
    if p.rank:
        matrix = matrix + p.left @ p.right.T + p.right @ p.left.T
    context, x = torch.randn(5, 6).double(), torch.randn(5, 6).double().requires_grad_()
    (gradient,) = torch.autograd.grad(block.energy(x, context).sum(), x)
    torch.testing.assert_close(block.update(x, context), -gradient @ matrix, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "diagonal", "std"),
    [
        ({}, math.log1p(math.e), 0.02),
        ({"preconditioner_diagonal": math.log(math.e - 1), "preconditioner_std": 0.5}, 1.0, 0.5),
    ],
)
def test_preconditioners_start_where_the_options_say(options: dict[str, Any], diagonal: float, std: float) -> None:
    options = {"preconditioner": "diagonal_low_rank", **options}
    for part, rank in ((cem.CEMMLP(20, 9, **options), 16), (CEMAttention(20, 4, **options), 4)):
        folded = part.preconditioner.fold(torch.eye(20))
        torch.testing.assert_close(folded, diagonal * torch.eye(20).expand_as(folded), rtol=1e-6, atol=0)
        # 320 draws: the sample deviation is within 4% with one sigma
        assert part.preconditioner.rank == rank
        assert float(part.preconditioner.left.detach().std()) == pytest.approx(std, rel=0.2)


@pytest.mark.parametrize("preconditioner", ["none", "diagonal"])
def test_learned_step_size_gets_the_gradient_of_the_plain_loop(preconditioner: str) -> None:
    block = _double(cem.CEMMLP(6, 9, num_steps=3, preconditioner=preconditioner, learn_step_size=True))
    stream = torch.randn(5, 6).double()
    parameters = list(block.parameters())
    assert any(parameter is block.step_size for parameter in parameters)
    found = torch.autograd.grad(block(stream).square().sum(), parameters)
    expected = torch.autograd.grad(block.trace(stream).states[-1].square().sum(), parameters)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_regressor_is_linear_norm_block_linear() -> None:
    model = _double(cem.GaussianProcessRegressor(cem.GatedMLP(8, 11), num_inputs=3, width=8))
    x = torch.randn(7, 3).double()
    state = model.state_dict()
    h = x @ state["input.weight"].T + state["input.bias"]
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    h = h * state["norm.weight"] + state["norm.bias"]
    up, gate = (h @ state[f"block.{part}.weight"].T + state[f"block.{part}.bias"] for part in ("up", "gate"))
    h = h + (up * torch.sigmoid(up) * gate) @ state["block.down.weight"].T + state["block.down.bias"]
    expected = h @ state["output.weight"][0] + state["output.bias"]
    torch.testing.assert_close(model(x).detach(), expected, rtol=1e-12, atol=1e-12)


# Attention.


def _attention(golden: Any, num_steps: int, **options: Any) -> CEMAttention:
    case, heads = golden.case, golden.shared("WQ")
    model = CEMAttention(
        width=heads.shape[-1],
        num_heads=len(heads),
        num_steps=num_steps,
        diagonal=case["diag"],
        value_diagonal=case["value_diag"],
        temperature=case["tau"],
        slopes="press" if case.get("alibi", True) else "none",
        preconditioner=PRECONDITIONERS[case["precond"]],
        rank=golden.shared("pa_U").shape[-1] if case["precond"] == "dlr" else None,
        **options,
    ).double()
    state = {
        name: golden.shared(theirs).flatten(0, 1) for name, theirs in (("query_weight", "WQ"), ("key_weight", "WK"))
    }
    state["norm_weight"] = golden.shared("g1")
    if model.slopes is not None:
        state |= {"bias_self": golden.shared("b_self"), "bias_cross": golden.shared("b_cross")}
        model.slopes = golden.shared("slopes")
    if case["diag"] != "none":
        state["diagonal"] = golden.shared({"shared": "d_shared", "per_head": "d_head"}[case["diag"]])
    if case["precond"] != "none":
        state["preconditioner.diagonal"] = golden.shared("pa_p")
    if case["precond"] == "dlr":
        state |= {"preconditioner.left": golden.shared("pa_U"), "preconditioner.right": golden.shared("pa_V")}
    model.load_state_dict(state, strict=True)
    return model


def _golden_attention(golden: Any) -> CEMAttention:
    case = golden.case
    options = {"norm_inside": case["norm_inside"], "start": case["start"], "step_size": case["eta"]}
    return _attention(golden, case["T"], **options)


@pytest.mark.golden("cem", "cem_attention*.npz")
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_golden_cem_attention_output(golden: Any, implementation: str) -> None:
    with prefer(implementation):
        _assert_golden(_golden_attention(golden)(golden.shared("hraw")), golden.expected("out"))


@pytest.mark.golden("cem", "cem_attention*.npz")
def test_golden_cem_attention_context_energies_and_updates(golden: Any) -> None:
    model, stream = _golden_attention(golden), golden.shared("hraw")
    trace, context = model.trace(stream), model.context(stream)
    _assert_golden(context, golden.shared("h"))
    _assert_golden(trace.energies, golden.expected("energy"))
    _assert_golden(trace.states[-1], golden.expected("out"))
    _assert_golden(model.update(trace.states[0], context), golden.expected("first_update"))


@pytest.mark.golden("cem", "cem_block*.npz")
def test_golden_cem_block(golden: Any) -> None:
    case, weight = golden.case, golden.shared("W")
    options = {"start": case["residual"]}
    attention = _attention(golden, case["T_att"], **options)
    mlp = cem.CEMMLP(
        width=weight.shape[1],
        hidden=weight.shape[0],
        num_steps=case["T_mlp"],
        activation=case["act"],
        norm_context=True,
        norm_inside=True,
        preconditioner=PRECONDITIONERS[case["precond"]],
        rank=golden.shared("pm_U").shape[1] if case["precond"] == "dlr" else None,
        **options,
    ).double()
    names = {"context_weight": "W", "reading_weight": "Vm", "norm_weight": "g2"}
    names |= {"preconditioner.diagonal": "pm_p"} if case["precond"] != "none" else {}
    names |= {"preconditioner.left": "pm_U", "preconditioner.right": "pm_V"} if case["precond"] == "dlr" else {}
    attention.norm_eps = mlp.norm_eps = case["eps"]
    mlp.load_state_dict({ours: golden.shared(theirs) for ours, theirs in names.items()}, strict=True)
    mid = attention(golden.shared("hraw"))
    _assert_golden(mid, golden.expected("mid"))
    _assert_golden(mlp(mid), golden.expected("out"))
    _assert_golden(attention.trace(golden.shared("hraw")).energies, golden.expected("energy_att"))
    _assert_golden(mlp.trace(mid).energies, golden.expected("energy_mlp"))


def _drawn(seed: int = 3, **options: Any) -> CEMAttention:
    """D = 12, K = 3, float64, every parameter away from its start."""
    torch.manual_seed(seed)
    model = CEMAttention(12, 3, **options).double()
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.4 * torch.randn_like(parameter.data)
    return model


STREAM = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
EXACT = [("none", False), ("shared", True), ("per_head", True)]
"""With these the update is minus the gradient of the energy; without the values' diagonal it is not."""


def _gradient(model: CEMAttention, x: Tensor, context: Tensor) -> Tensor:
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.energy(point, context).sum(), point)
    return gradient


@pytest.mark.parametrize(("diagonal", "value_diagonal"), EXACT)
@pytest.mark.parametrize("temperature", cem.TEMPERATURES)
def test_the_update_is_minus_the_gradient_of_the_energy(diagonal: str, value_diagonal: bool, temperature: str) -> None:
    options = {"diagonal": diagonal, "value_diagonal": value_diagonal, "temperature": temperature}
    model = _drawn(norm_inside=False, **options)
    context = model.context(STREAM)
    torch.testing.assert_close(
        model.update(STREAM, context), -_gradient(model, STREAM, context), rtol=1e-12, atol=1e-12
    )


def test_with_the_diagonal_in_the_scores_alone_it_is_not() -> None:
    model = _drawn(norm_inside=False)
    context = model.context(STREAM)
    assert float((model.update(STREAM, context) + _gradient(model, STREAM, context)).detach().abs().max()) > 0.1


def test_slopes() -> None:
    assert cem.press_slopes(8) == [2.0**-k for k in range(1, 9)]
    # Press et al.: for 12 heads those of 8, then every second one of 16.
    assert cem.press_slopes(12) == [2.0**-k for k in range(1, 9)] + [2 ** -(k - 0.5) for k in range(1, 5)]
    assert cem.power_slopes(3) == [0.5, 0.25, 0.125]
    assert cem.press_slopes(1) == [2.0**-8]
