"""The closed form against the definition.  Both do the same products in another order, hence the tolerances:
float64 1e-12 (a few thousand roundings of 1e-16 on values of order one), float32 2e-5 likewise."""

import pytest
import torch
from torch import Tensor

from paper_repro.kernels import cem_mlp
from paper_repro.kernels.cem_mlp import descend

NAMES = ("x", "gamma", "reading", "writing")


def _inputs(
    stack: tuple[int, ...], tokens: tuple[int, ...], width: int, hidden: int, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = ((*tokens, width), (*tokens, hidden), (hidden, width), (hidden, width))
    scales = (1.0, 1.0, width**-0.5, hidden**-0.5)
    return {
        name: (torch.randn(*stack, *shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
        for name, shape, scale in zip(NAMES, shapes, scales, strict=True)
    }


def _values_and_gradients(
    implementation: str, inputs: dict[str, Tensor], tied: bool, **options: object
) -> dict[str, Tensor]:
    leaves = {
        name: value.clone().requires_grad_() for name, value in inputs.items() if not (tied and name == "writing")
    }
    writing = leaves["reading"] if tied else leaves["writing"]
    out = descend(leaves["x"], leaves["gamma"], leaves["reading"], writing, implementation=implementation, **options)  # type: ignore[arg-type]
    weights = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
    gradients = torch.autograd.grad((out * weights).sum(), list(leaves.values()))
    return {"out": out.detach(), **dict(zip(leaves, gradients, strict=True))}


def _assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()), msg=name
        )


@pytest.fixture(params=["one by one", "as one"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cem_mlp, "SMALL", 0 if request.param == "one by one" else 1 << 62)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return str(request.param)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 8])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "folded"])
@pytest.mark.parametrize(
    ("stack", "tokens", "width", "hidden"),
    [((), (6,), 5, 7), ((3,), (1,), 5, 7), ((3,), (2, 3), 4, 1), ((2, 2), (5,), 1, 6), ((), (), 3, 4)],
)
def test_closed_form_has_the_values_and_gradients_of_the_definition(
    stack: tuple[int, ...],
    tokens: tuple[int, ...],
    width: int,
    hidden: int,
    tied: bool,
    num_steps: int,
    activation: str,
) -> None:
    inputs = _inputs(stack, tokens, width, hidden)
    options = {"num_steps": num_steps, "step_size": 0.7, "activation": activation}
    expected = _values_and_gradients("reference", inputs, tied, **options)
    _assert_same(_values_and_gradients("closed_form", inputs, tied, **options), expected, 1e-12)
