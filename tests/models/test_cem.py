import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

from paper_repro.models import cem
from paper_repro.models import cem as regression
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
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.golden("cem", "cem_mlp*.npz")
def test_golden_cem_mlp_output(golden) -> None:  # type: ignore[no-untyped-def]
    _assert_golden(_golden_model(golden)(golden.shared("hraw")).detach(), golden.expected("out"))


@pytest.mark.golden("cem", "cem_mlp*.npz")
def test_golden_cem_mlp_energies_and_states(golden) -> None:  # type: ignore[no-untyped-def]
    trace = _golden_model(golden).trace(golden.shared("hraw"))
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


def test_forward_is_repeated_gradient_descent_on_the_energy() -> None:
    block = _double(cem.CEMMLP(6, 9, num_steps=4, step_size=0.3))
    stream = torch.randn(5, 6).double()
    x = stream.clone()
    for _ in range(4):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(block.energy(x, stream).sum(), x)
        x = (x - 0.3 * gradient).detach()
    torch.testing.assert_close(block(stream).detach(), x, rtol=1e-12, atol=1e-12)


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


def test_preconditioner_starts_at_softplus_of_one_times_the_identity() -> None:
    block = cem.CEMMLP(20, 9, preconditioner="diagonal_low_rank")
    assert block.preconditioner.rank == 16
    folded = block.preconditioner.fold(torch.eye(20))
    torch.testing.assert_close(folded, math.log1p(math.e) * torch.eye(20), rtol=1e-6, atol=0)
    # 320 draws of N(0, 0.02): the sample deviation is within 4% of it with one sigma
    assert float(block.preconditioner.left.detach().std()) == pytest.approx(0.02, rel=0.2)


def test_preconditioner_starts_where_the_options_say() -> None:
    identity = math.log(math.e - 1)
    options: dict[str, Any] = {"preconditioner_diagonal": identity, "preconditioner_std": 0.5}
    parts = (
        cem.CEMMLP(20, 9, preconditioner="diagonal_low_rank", **options),
        CEMAttention(20, 4, preconditioner="diagonal_low_rank", **options),
    )
    for part in parts:
        folded = part.preconditioner.fold(torch.eye(20))
        torch.testing.assert_close(folded, torch.eye(20).expand_as(folded), rtol=1e-6, atol=0)
        # 320 draws: within 4% with one sigma
        assert float(part.preconditioner.left.detach().std()) == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("options", [{}, {"norm_context": True, "preconditioner": "diagonal"}])
def test_small_steps_lower_the_energy(options: dict[str, object]) -> None:
    block = _double(cem.CEMMLP(8, 12, num_steps=6, step_size=0.01, **options))  # type: ignore[arg-type]
    with torch.no_grad():
        trace = block.trace(torch.randn(50, 8).double())
    assert (trace.energies.diff(dim=0) < 0).all()
    assert trace.states.shape == (7, 50, 8)
    assert trace.energies.shape == (7, 50)


def test_t_of_one_with_the_raw_stream_is_a_weight_tied_gated_block() -> None:
    block = _double(cem.CEMMLP(6, 9, norm_context=True, norm_inside=True))
    stream = torch.randn(5, 6).double()
    h = nn.functional.rms_norm(stream, (6,), block.norm_weight, 1e-6)
    gated = (h @ block.context_weight.T) * nn.functional.silu(h @ block.reading_weight.T)
    torch.testing.assert_close(block(stream), stream + gated @ block.reading_weight, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("scale", [1.0, 2.45])
def test_initial_weights_fill_their_interval(scale: float) -> None:
    torch.manual_seed(0)
    block = cem.CEMMLP(64, 170, context_init_scale=scale, reading_init_scale=2 * scale)
    for weight, bound in ((block.context_weight, scale / 8), (block.reading_weight, scale / 4)):
        assert 0.99 * bound < float(weight.detach().abs().max()) <= bound
        # the standard deviation of 10,880 uniform draws is within 0.4% of bound/sqrt(3) with one sigma; 3% is > 7
        assert float(weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "plain": (lambda: regression.PlainMLP(64, 256), 33_985),
    "gated": (lambda: regression.GatedMLP(64, 170), 33_941),
    "energy": (lambda: cem.CEMMLP(64, 170, num_steps=2), 22_657),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_parameters_of_table_3(name: str) -> None:
    build, parameters = BLOCKS[name]
    model = regression.GaussianProcessRegressor(build(), num_inputs=10, width=64)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.zeros(3, 5, 10)).shape == (3, 5)


def test_regressor_is_linear_norm_block_linear() -> None:
    model = _double(regression.GaussianProcessRegressor(regression.GatedMLP(8, 11), num_inputs=3, width=8))
    x = torch.randn(7, 3).double()
    state = model.state_dict()
    h = x @ state["input.weight"].T + state["input.bias"]
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    h = h * state["norm.weight"] + state["norm.bias"]
    up, gate = (h @ state[f"block.{part}.weight"].T + state[f"block.{part}.bias"] for part in ("up", "gate"))
    h = h + (up * torch.sigmoid(up) * gate) @ state["block.down.weight"].T + state["block.down.bias"]
    expected = h @ state["output.weight"][0] + state["output.bias"]
    torch.testing.assert_close(model(x).detach(), expected, rtol=1e-12, atol=1e-12)


def test_plain_mlp_equation() -> None:
    block = _double(regression.PlainMLP(5, 7, activation="gelu"))
    h = torch.randn(3, 5).double()
    inner = nn.functional.gelu(h @ block.up.weight.T + block.up.bias)
    torch.testing.assert_close(block(h), h + inner @ block.down.weight.T + block.down.bias, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", BLOCKS)
def test_stacked_models_equal_single_models(name: str) -> None:
    torch.manual_seed(1)
    models = [regression.GaussianProcessRegressor(BLOCKS[name][0]()).double() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(models)
    x = torch.randn(3, 20, 10).double()
    stacked = torch.func.vmap(lambda p, rows: torch.func.functional_call(models[0], p, (rows,)))(parameters, x)
    gradients = torch.autograd.grad(stacked.square().sum(), list(parameters.values()))
    for index, model in enumerate(models):
        out = model(x[index])
        torch.testing.assert_close(stacked[index], out, rtol=1e-12, atol=1e-12)
        single = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        for key, (ours, theirs) in enumerate(zip(gradients, single, strict=True)):
            torch.testing.assert_close(ours[index], theirs, rtol=1e-10, atol=1e-10, msg=str(key))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"hidden": 2.5}, "hidden must be a whole number of at least 1, got 2.5"),
        ({"num_steps": 0}, "num_steps must be a whole number of at least 1, got 0"),
        ({"num_steps": True}, "num_steps must be a whole number of at least 1, got True"),
        ({"activation": "silo"}, r"activation must be one of silu, gelu, got 'silo' \(did you mean 'silu'"),
        ({"start": "norm"}, "start must be one of raw, normed, got 'norm'"),
        ({"start": "normed"}, "start='normed' has no effect without norm_context"),
        ({"preconditioner": "full"}, "preconditioner must be one of"),
        ({"rank": 2}, "rank=2 has no effect with preconditioner='none'"),
        ({"preconditioner_diagonal": 1.0}, "preconditioner_diagonal=1.0 has no effect with preconditioner='none'"),
        ({"preconditioner": "diagonal", "preconditioner_std": 0.02}, "preconditioner_std=0.02 has no effect"),
        (
            {"preconditioner": "diagonal_low_rank", "rank": 2, "preconditioner_std": 0.0},
            "preconditioner_std must be a positive finite number, got 0.0",
        ),
        ({"preconditioner": "diagonal_low_rank", "rank": 7}, "rank must lie between 0 .* width 6, got 7"),
        ({"preconditioner": "diagonal_low_rank", "rank": 0}, "rank must be a whole number of at least 1, got 0"),
        ({"preconditioner": "diagonal_low_rank"}, "rank must lie between 0 .* width 6, got 16"),
        ({"step_size": -1.0}, "step_size must be a positive finite number, got -1.0"),
        ({"norm_eps": 0}, "norm_eps must be a positive"),
        ({"context_init_scale": math.inf}, "context_init_scale must be a positive finite number, got inf"),
        ({"reading_init_scale": "1"}, "reading_init_scale must be a positive finite number, got '1'"),
    ],
)
def test_wrong_options_of_the_energy_mlp_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cem.CEMMLP(**{"width": 6, "hidden": 9, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [regression.PlainMLP, regression.GatedMLP])
@pytest.mark.parametrize("options", [{"width": -1}, {"hidden": 0}, {"activation": "tanh"}])
def test_wrong_options_of_the_baselines_are_refused(block: type, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        block(**{"width": 6, "hidden": 9, **options})


def test_a_block_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width is 32, but the block was built with width 64"):
        regression.GaussianProcessRegressor(regression.PlainMLP(64, 256), width=32)
    with pytest.raises(ValueError, match="num_inputs must be a whole number of at least 1"):
        regression.GaussianProcessRegressor(regression.PlainMLP(64, 256), num_inputs=0)
