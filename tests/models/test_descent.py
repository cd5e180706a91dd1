"""The one descent on a toy energy whose steps and parameter gradients are derived by hand, and under the papers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models.descent import Trajectory, computed_again, descend
from paper_repro.tests.training.energy import gradient_step

RATE = 0.05
X = torch.tensor([[0.7, -1.2, 0.4], [1.1, 0.3, -0.8]], dtype=torch.float64)
W = torch.tensor([0.5, 1.5, 0.9], dtype=torch.float64)
C = torch.tensor([[0.3, -0.7, 1.9], [0.2, 1.3, -0.4]], dtype=torch.float64)
"""What the last state is read with: the loss is sum C x_S."""


def energy(x: Tensor, w: Tensor = W) -> Tensor:
    """E = sum_d w_d x_d^2 / 2 + x_d^4 / 4, (B,), for x (B, D) and the parameters w (D,)."""
    return (w * x.square() / 2 + x**4 / 4).sum(-1)


def by_hand(x: Tensor, w: Tensor, num_steps: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """The states, d(sum C x_S)/dw and d(sum C x_S)/dx_0 of x <- x - a (w x + x^3), by the chain rule forwards."""
    states, by_w, by_x = [x], torch.zeros_like(x), torch.ones_like(x)
    for _ in range(num_steps):
        slope = 1 - RATE * (w + 3 * x**2)
        by_w, by_x = slope * by_w - RATE * x, slope * by_x
        x = x - RATE * (w * x + x**3)
        states.append(x)
    return states, (C * by_w).sum(0), C * by_x


def down(x: Tensor, w: Tensor, num_steps: int, **options: Any) -> Trajectory[Tensor]:
    def of(at: Tensor) -> Tensor:
        return energy(at, w)

    return descend(gradient_step(of, RATE), x, num_steps, energy=of, **options)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_states_and_energies_are_those_by_hand_whether_gradients_are_on_or_off(mode: Any) -> None:
    states, _, _ = by_hand(X, W, 7)
    with mode():
        recorded: Any = {"energies_at": range(8), "states_at": (0, 3, 7)}
        found = down(X.clone(), W.clone(), 7, **recorded, change=lambda before, after: (after - before).abs())
    close(found.change, (states[7] - states[6]).abs())
    close(found.state, states[7])
    close(found.states, torch.stack([states[0], states[3], states[7]]))
    close(found.energies, torch.stack([energy(state) for state in states]))
    assert bool((found.energies.diff(dim=0) < 0).all())


def test_gradients_of_the_parameters_are_those_by_hand() -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    found = torch.autograd.grad((C * down(x, w, 5).state).sum(), (w, x))
    _, by_w, by_x = by_hand(X, W, 5)
    close(found[0], by_w)
    close(found[1], by_x)


def test_a_state_may_be_a_tree() -> None:
    def together(state: tuple[Tensor, Tensor]) -> Tensor:
        return energy(state[0]) + (state[0] * state[1]).sum(1) + state[1].square().sum(1)

    found = descend(gradient_step(together, RATE), (X, C), 2, states_at=range(3))
    tokens, image = X - RATE * (W * X + X**3 + C), C - RATE * (X + 2 * C)
    close(found.states[0][:2], torch.stack([X, tokens]))
    close(found.state[1], image - RATE * (tokens + 2 * image))


@pytest.mark.parametrize(
    ("options", "message"), [({"num_steps": 0}, "num_steps"), ({"energies_at": (1,)}, "give energy=")]
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"step": gradient_step(energy, RATE), "start": X, "num_steps": 2, **options}
    with pytest.raises(ValueError, match=message):
        descend(**given)


def test_what_is_computed_again_is_computed_in_the_same_precision() -> None:
    weight, seen = torch.eye(3, requires_grad=True), []

    def function(x: Tensor) -> Tensor:
        seen.append((x @ weight).dtype)
        return x @ weight

    x = torch.ones(2, 3, requires_grad=True)
    for half in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", half):
            found = computed_again(function, x, [weight])
        found.sum().backward()
        assert seen[-2:] == [half, half]
