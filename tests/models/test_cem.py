import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

from paper_repro.models import cem
from paper_repro.models.cem import CEMMLP, CEMAttention, CEMPart
from paper_repro.tests.support.float64 import assert_exact, own_gradient, randomised
from paper_repro.tests.support.golden import assert_golden, cases

PRECONDITIONERS = {"none": "none", "diag": "diagonal", "dlr": "diagonal_low_rank"}


def _load(golden: Any, part: CEMPart, prefix: str, names: dict[str, str]) -> None:
    """Load the record's weights by our names; those of the preconditioner begin with ``prefix``."""
    precond = golden.case["precond"]
    names |= {"preconditioner.diagonal": f"{prefix}_p"} if precond != "none" else {}
    if precond == "dlr":
        names |= {"preconditioner.left": f"{prefix}_U", "preconditioner.right": f"{prefix}_V"}
    state = {ours: golden.shared(theirs) for ours, theirs in names.items()}
    shapes = {name: value.shape for name, value in part.state_dict().items()}
    part.load_state_dict({name: value.reshape(shapes[name]) for name, value in state.items()}, strict=True)


def _preconditioner(golden: Any, prefix: str) -> dict[str, Any]:
    kind = golden.case["precond"]
    rank = golden.shared(f"{prefix}_U").shape[-1] if kind == "dlr" else None
    return {"preconditioner": PRECONDITIONERS[kind], "rank": rank}


def _mlp(golden: Any, num_steps: int, norm: str, **options: Any) -> CEMMLP:
    hidden, width = golden.shared("W").shape
    options |= {"activation": golden.case["act"], "norm_context": True, **_preconditioner(golden, "pm")}
    model = CEMMLP(width, hidden, num_steps, **options).double()
    _load(golden, model, "pm", {"context_weight": "W", "reading_weight": "Vm", "norm_weight": norm})
    return model


def _attention(golden: Any, num_steps: int, **options: Any) -> CEMAttention:
    case, (heads, _, width) = golden.case, golden.shared("WQ").shape
    options |= {"diagonal": case["diag"], "value_diagonal": case["value_diag"], "temperature": case["tau"]}
    slopes = "press" if case.get("alibi", True) else "none"
    model = CEMAttention(width, heads, num_steps, slopes=slopes, **options, **_preconditioner(golden, "pa")).double()
    names = {"query_weight": "WQ", "key_weight": "WK", "norm_weight": "g1"}
    if model.slopes is not None:
        names |= {"bias_self": "b_self", "bias_cross": "b_cross"}
        model.slopes = golden.shared("slopes")
    if case["diag"] != "none":
        names["diagonal"] = {"shared": "d_shared", "per_head": "d_head"}[case["diag"]]
    _load(golden, model, "pa", names)
    return model


def _compare(golden: Any, part: CEMPart) -> None:
    """Output, energies, context and first update are those of the record."""
    trace, context = part.trace(golden.shared("hraw")), part.context(golden.shared("hraw"))
    assert_golden(context, golden.shared("h"))
    assert_golden(part(golden.shared("hraw")), golden.expected("out"))
    assert_golden(trace.energies, golden.expected("energy"))
    assert_golden(trace.states[-1], golden.expected("out"))
    assert_golden(part.update(trace.states[0], context), golden.expected("first_update"))


def _options(case: dict[str, Any]) -> dict[str, Any]:
    return {"norm_inside": case["norm_inside"], "start": case["start"], "step_size": case["eta"]}


@pytest.mark.parametrize("golden", cases("cem", "cem_mlp*.npz"))
def test_golden_cem_mlp(golden: Any) -> None:
    _compare(golden, _mlp(golden, golden.case["T"], "g1", **_options(golden.case)))
    activation = golden.case["act"]
    assert_golden(cem.POTENTIALS[activation](golden.shared("phi_x")), golden.shared(f"phi_{activation}"))


@pytest.mark.parametrize("golden", cases("cem", "cem_attention*.npz"))
def test_golden_cem_attention(golden: Any) -> None:
    _compare(golden, _attention(golden, golden.case["T"], **_options(golden.case)))


@pytest.mark.parametrize("golden", cases("cem", "cem_block*.npz"))
def test_golden_cem_block(golden: Any) -> None:
    case = golden.case
    attention = _attention(golden, case["T_att"], start=case["residual"])
    mlp = _mlp(golden, case["T_mlp"], "g2", norm_inside=True, start=case["residual"])
    attention.norm_eps = mlp.norm_eps = case["eps"]
    mid = attention(golden.shared("hraw"))
    assert_golden(mid, golden.expected("mid"))
    assert_golden(mlp(mid), golden.expected("out"))
    assert_golden(attention.trace(golden.shared("hraw")).energies, golden.expected("energy_att"))
    assert_golden(mlp.trace(mid).energies, golden.expected("energy_mlp"))


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
        for at, found in zip(x.tolist(), potential(x).tolist(), strict=True):
            assert abs(found - exact(at)) < 2e-15 * max(1, abs(exact(at)))


LOW_RANK = {"preconditioner": "diagonal_low_rank", "rank": 2}
EXACT = [
    *(CEMMLP(12, 9, activation=act, norm_inside=inside) for act in ("silu", "gelu") for inside in (False, True)),
    *(CEMMLP(12, 9, **options) for options in (LOW_RANK, {"preconditioner": "diagonal"})),
    *(
        CEMAttention(12, 3, diagonal=diagonal, value_diagonal=values, temperature=temperature, norm_inside=False)
        for diagonal, values in (("none", False), ("shared", True), ("per_head", True))
        for temperature in cem.TEMPERATURES
    ),
]


@pytest.mark.parametrize("part", EXACT)
def test_the_update_is_minus_the_preconditioned_gradient_of_the_energy(part: CEMPart) -> None:
    part, x = randomised(part), 3 * torch.randn(2, 5, 12).double()
    context, p = part.context(torch.randn(2, 5, 12).double()), part.preconditioner
    matrix = torch.eye(12).double()
    if p.kind != "none":
        matrix = torch.diag(nn.functional.softplus(math.sqrt(12) * p.diagonal))
    if p.rank:
        matrix = matrix + p.left @ p.right.T + p.right @ p.left.T
    gradient = own_gradient(lambda u: part.energy(u, context), part.point(x).detach())
    assert_exact(part.update(x, context), -gradient @ matrix)


def test_regressor_is_linear_norm_block_linear() -> None:
    model = randomised(cem.GaussianProcessRegressor(cem.GatedMLP(8, 11), num_inputs=3, width=8))
    x = torch.randn(7, 3).double()
    state = model.state_dict()
    h = x @ state["input.weight"].T + state["input.bias"]
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    h = h * state["norm.weight"] + state["norm.bias"]
    up, gate = (h @ state[f"block.{part}.weight"].T + state[f"block.{part}.bias"] for part in ("up", "gate"))
    h = h + (up * torch.sigmoid(up) * gate) @ state["block.down.weight"].T + state["block.down.bias"]
    expected = h @ state["output.weight"][0] + state["output.bias"]
    torch.testing.assert_close(model(x).detach(), expected, rtol=1e-12, atol=1e-12)


def test_slopes() -> None:
    assert cem.press_slopes(8) == [2.0**-k for k in range(1, 9)]
    # Press et al.: for 12 heads those of 8, then every second one of 16.
    assert cem.press_slopes(12) == [2.0**-k for k in range(1, 9)] + [2 ** -(k - 0.5) for k in range(1, 5)]
    assert cem.press_slopes(1) == [2.0**-8]
    assert CEMAttention(6, 3, slopes="powers").slopes.tolist() == [0.5, 0.25, 0.125]
