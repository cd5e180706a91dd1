"""The one descent on a toy energy whose steps and parameter gradients are derived by hand, and under the papers."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models.descent import Trajectory, computed_again, descend, normal_draws
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
        found = down(X.clone(), W.clone(), 7, energies_at=range(8), states_at=(0, 3, 7))
    assert found.num_steps == 7 and found.change is None and found.changes is None
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


def test_a_tolerance_stops_where_the_energy_has_settled_for_so_many_steps() -> None:
    energies = [energy(state) for state in by_hand(X, W, 400)[0]]
    changes = [((two - one).abs() / torch.maximum(one, two)).max() for one, two in pairwise(energies)]
    tolerance = float(changes[20]) * (1 + 1e-9)
    first = next(number for number, change in enumerate(changes, 1) if change <= tolerance)
    found = down(X, W, 400, tolerance=tolerance)
    assert found.num_steps == first and found.change is not None and bool((found.change <= tolerance).all())
    later = down(X, W, 400, tolerance=tolerance, patience=3, energies_at=range(401))
    calm = [all(change <= tolerance for change in changes[end - 3 : end]) for end in range(3, 401)]
    assert later.num_steps == calm.index(True) + 3 > first
    assert len(later.energies) == later.num_steps + 1 and later.changes is not None
    close(later.changes.amax(1), torch.stack(changes[: later.num_steps]))
    assert down(X, W, 400, tolerance=0.0).num_steps == 400


def test_draws_reach_the_step_that_they_are_for() -> None:
    noise = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = gradient_step(energy, RATE, noise_scale=0.3)
    expected = X
    for own in noise[:4]:
        expected = expected - RATE * (W * expected + expected**3) + 0.3 * own
    close(descend(rule, X, 4, draws=noise).state, expected)
    close(descend(rule, X, 4, draws=lambda index: noise[index]).state, expected)
    seen: list[Any] = []
    descend(lambda x, index, draws: (seen.append((index, draws)), x)[1], X, 3)
    assert seen == [(0, None), (1, None), (2, None)]


def test_normal_draws_follow_from_the_seed_and_differ_from_step_to_step() -> None:
    draw, ends = normal_draws((X, X[0].float())), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        ends.append(descend(gradient_step(energy, RATE, 1.0), X, 3, draws=normal_draws(X)).state)
    assert torch.equal(ends[0], ends[2]) and not torch.equal(ends[0], ends[1])
    (one, short), (two, _) = draw(0), draw(1)
    assert one.shape == X.shape and one.dtype == torch.float64 and not torch.equal(one, two)
    assert short.shape == (3,) and short.dtype == torch.float32


def test_a_state_may_be_a_tree() -> None:
    def together(state: tuple[Tensor, Tensor]) -> Tensor:
        return energy(state[0]) + (state[0] * state[1]).sum(1) + state[1].square().sum(1)

    found = descend(gradient_step(together, RATE), (X, C), 2, states_at=range(3))
    tokens, image = X - RATE * (W * X + X**3 + C), C - RATE * (X + 2 * C)
    close(found.states[0][:2], torch.stack([X, tokens]))
    close(found.state[1], image - RATE * (tokens + 2 * image))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"energies_at": (1,)}, "give energy="),
        ({"draws": torch.zeros(1, 2, 3)}, "draw for every step"),
    ],
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
