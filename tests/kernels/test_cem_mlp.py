"""The closed form against the definition.  Both do the same products in another order, hence the tolerances:
float64 1e-12 (a few thousand roundings of 1e-16 on values of order one), float32 2e-5 likewise."""

import pytest
import torch
from torch import Tensor

from paper_repro.kernels import cem_mlp
from paper_repro.kernels.cem_mlp import descend
from paper_repro.tests.support.ops import assert_as_defined


def _inputs(stack: tuple[int, ...], tokens: tuple[int, ...], width: int, hidden: int) -> list[Tensor]:
    """x, gamma, reading and writing."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((*tokens, width), (*tokens, hidden), (hidden, width), (hidden, width))
    scales = (1.0, 1.0, width**-0.5, hidden**-0.5)
    return [
        torch.randn(*stack, *shape, generator=generator, dtype=torch.float64) * scale
        for shape, scale in zip(shapes, scales, strict=True)
    ]


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
    def descended(x: Tensor, gamma: Tensor, reading: Tensor, writing: Tensor | None = None, **way: str) -> Tensor:
        options = {"num_steps": num_steps, "step_size": 0.7, "activation": activation}
        return descend(x, gamma, reading, reading if writing is None else writing, **options, **way)  # type: ignore[arg-type]

    inputs = _inputs(stack, tokens, width, hidden)[: 3 if tied else 4]
    assert_as_defined(descended, inputs, "closed_form", 1e-12)
