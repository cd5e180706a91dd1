from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.kernels.preferences import prefer
from paper_repro.models import cem
from paper_repro.models import cem as cem_attention
from paper_repro.models.cem import CEMAttention
from paper_repro.tests.models.test_cem import PRECONDITIONERS
from paper_repro.tests.support.float64 import assert_exact

DIAGONALS = {"none": "none", "shared": "shared", "per_head": "per_head"}


def _attention(golden: Any, num_steps: int, **options: Any) -> CEMAttention:
    case, heads = golden.case, golden.shared("WQ")
    model = CEMAttention(
        width=heads.shape[-1],
        num_heads=len(heads),
        num_steps=num_steps,
        diagonal=DIAGONALS[case["diag"]],
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


def _assert_golden(found: Tensor, expected: Tensor) -> None:
    """1e-9 of each number, or of the largest where one is a difference of larger ones."""
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


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
    options = {"start": case["residual"], "norm_eps": case["eps"]}
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
@pytest.mark.parametrize("temperature", cem_attention.TEMPERATURES)
def test_the_update_is_minus_the_gradient_of_the_energy(diagonal: str, value_diagonal: bool, temperature: str) -> None:
    options = {"diagonal": diagonal, "value_diagonal": value_diagonal, "temperature": temperature}
    model = _drawn(norm_inside=False, **options)
    context = model.context(STREAM)
    torch.testing.assert_close(
        model.update(STREAM, context), -_gradient(model, STREAM, context), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("diagonal", ["shared", "per_head"])
def test_with_the_diagonal_in_the_scores_alone_it_is_not(diagonal: str) -> None:
    model = _drawn(norm_inside=False, diagonal=diagonal)
    context = model.context(STREAM)
    assert float((model.update(STREAM, context) + _gradient(model, STREAM, context)).detach().abs().max()) > 0.1


def test_a_folded_preconditioner_is_applied_to_the_update_of_each_head() -> None:
    for kind in ("diagonal", "diagonal_low_rank"):
        model = _drawn(preconditioner=kind, diagonal="per_head", value_diagonal=True)
        assert model.preconditioner is not None
        identity = torch.eye(12, dtype=torch.float64)
        matrices = model.preconditioner.fold(identity.expand(3, 12, 12))
        torch.testing.assert_close(matrices, matrices.mT, rtol=1e-14, atol=1e-14)
        plain = _drawn(diagonal="per_head", value_diagonal=True)
        expected = torch.zeros_like(STREAM)
        for head in range(3):
            alone = _drawn(preconditioner=kind, diagonal="per_head", value_diagonal=True)
            plain.load_state_dict({k: v for k, v in alone.state_dict().items() if k in plain.state_dict()})
            rows = torch.arange(12) // 4 != head
            # A head without keys has uniform or positional weights, and values of its diagonal only: take both out.
            with torch.no_grad():
                plain.query_weight[rows] = 0
                others = [k for k in range(3) if k != head]
                plain.diagonal[others] = 0
            expected = expected + plain.update(STREAM, plain.context(STREAM)) @ matrices[head]
        torch.testing.assert_close(model.update(STREAM, model.context(STREAM)), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("diagonal", "value_diagonal"), [("none", False), ("shared", False), *EXACT[1:]])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_forward_is_the_last_state_of_the_trace(diagonal: str, value_diagonal: bool, num_steps: int) -> None:
    options = {"diagonal": diagonal, "value_diagonal": value_diagonal, "preconditioner": "diagonal_low_rank"}
    model = _drawn(num_steps=num_steps, step_size=0.7, **options)
    torch.testing.assert_close(model(STREAM), model.trace(STREAM).states[-1], rtol=1e-12, atol=1e-12)


def test_one_step_without_diagonal_is_standard_attention_with_tied_weights() -> None:
    model = _drawn(diagonal="none", slopes="none")
    h = functional.rms_norm(STREAM, (12,), model.norm_weight, 1e-6)

    def heads(weight: Tensor) -> Tensor:
        return functional.linear(h, weight).unflatten(-1, (3, 4)).transpose(1, 2)

    key = heads(model.key_weight)
    read = functional.scaled_dot_product_attention(heads(model.query_weight), key, key, is_causal=True)
    expected = STREAM + read.transpose(1, 2).flatten(2) @ model.query_weight
    torch.testing.assert_close(model(STREAM), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("diagonal", cem_attention.DIAGONALS)
def test_no_token_sees_a_later_one(diagonal: str) -> None:
    model = _drawn(num_steps=2, diagonal=diagonal)
    other = STREAM.clone()
    other[:, 4:] = torch.randn_like(other[:, 4:])
    assert_exact(model(STREAM)[:, :4], model(other)[:, :4])
    assert not torch.allclose(model(STREAM)[:, 4], model(other)[:, 4])


def test_any_step_along_the_gradient_lowers_the_energy_for_it_is_concave() -> None:
    model = _drawn(num_steps=6, diagonal="shared", value_diagonal=True, norm_inside=False, step_size=0.5)
    energies = model.trace(STREAM).energies
    assert bool((energies.diff(dim=0) < 0).all())


def test_slopes() -> None:
    assert cem_attention.press_slopes(8) == [2.0**-k for k in range(1, 9)]
    # Press et al.: for 12 heads those of 8, then every second one of 16.
    assert cem_attention.press_slopes(12) == [2.0**-k for k in range(1, 9)] + [2 ** -(k - 0.5) for k in range(1, 5)]
    assert cem_attention.power_slopes(3) == [0.5, 0.25, 0.125]
    assert cem_attention.press_slopes(1) == [2.0**-8]


def test_parameters_are_half_of_standard_attention_and_what_the_options_add() -> None:
    def count(**options: Any) -> int:
        return sum(parameter.numel() for parameter in CEMAttention(96, 12, **options).parameters())

    base = 2 * 96**2 + 96 + 2  # two matrices, the norm, b_self and b_cross
    assert count(diagonal="none") == base
    assert count(diagonal="none", slopes="none") == base - 2
    assert count(diagonal="shared") == base + 96
    assert count(diagonal="per_head") == base + 12 * 96
    assert count(diagonal="none", preconditioner="diagonal") == base + 12 * 96
    assert count(diagonal="none", preconditioner="diagonal_low_rank") == base + 12 * 96 * 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"num_heads": 5}, "divide"),
        ({"preconditioner": "diagonal_low_rank", "rank": 13}, "between 0 .* and the width 12, got 13"),
        ({"rank": 4}, "rank=4 has no effect"),
        ({"diagonal": "all"}, "diagonal must be one of none, shared, per_head"),
        ({"diagonal": "none", "value_diagonal": True}, "no effect with diagonal='none'"),
        ({"diagonal": "none", "diagonal_init": 1.0}, "diagonal_init has no effect"),
        ({"start": "normed", "norm_context": False}, "no effect without norm_context"),
        ({"temperature": "cold"}, "temperature must be one of head, model"),
        ({"slopes": "steep"}, "slopes must be one of press, powers, none"),
        ({"step_size": 0.0}, "step_size"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CEMAttention(**{"width": 12, "num_heads": 3, **options})
