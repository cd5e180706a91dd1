import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models.cet import (
    CET,
    Phases,
    cost,
    equilibrium_propagation,
    full_backpropagation,
    truncated_backpropagation,
)
from paper_repro.tests.support import golden, golden_cet

FILES = golden.files("cet", "cet_ep*.npz")


class FromGoldenStart(CET):
    """Starts where the record starts."""

    given: Any

    def first(self, clamped: Any) -> Any:
        return self.given


def _instance(path: Path) -> tuple[dict[str, Any], CET]:
    record = golden.read(path)
    model = golden_cet.build(record)
    model.__class__ = FromGoldenStart
    model.given = golden_cet.state(model, record["z0"], record["y0"])
    return record, model


def _gradients(model: CET) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _assert_golden(model: CET, record: dict[str, Any], kind: str, tolerance: float = 1e-9) -> None:
    found, expected = _gradients(model), golden_cet.ours(model, record, kind)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))


@pytest.mark.parametrize("path", FILES)
def test_golden_cet_free_state_and_loss(path: Path) -> None:
    record, model = _instance(path)
    clamped = model.clamp(record["xbar"][None])
    free = model.relax(model.first(clamped), clamped, 150).state
    expected = golden_cet.state(model, record["free_z"], record["free_y"])
    for found, value in zip(free, expected, strict=True):
        torch.testing.assert_close(found.detach(), value, rtol=1e-9, atol=1e-9)
    loss = cost(free, model.patches.blocks(record["x"][None]))[0].detach()
    torch.testing.assert_close(loss, record["loss"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("path", FILES)
def test_golden_cet_backpropagation(path: Path) -> None:
    record, model = _instance(path)
    full_backpropagation(model, record["xbar"][None], record["x"][None], 150)
    _assert_golden(model, record, "bptt_full")
    model.zero_grad()
    truncated_backpropagation(model, record["xbar"][None], record["x"][None], Phases(150, 5))
    _assert_golden(model, record, "tbpte5")


@pytest.mark.parametrize(("steps", "beta"), [(150, 0.1), (150, 0.01), (5, 0.01)])
@pytest.mark.parametrize("path", FILES)
def test_golden_cet_equilibrium_propagation(path: Path, steps: int, beta: float) -> None:
    record, model = _instance(path)
    learned = equilibrium_propagation(model, record["xbar"][None], record["x"][None], Phases(150, steps, beta))
    # A difference of two states over 2 beta: the rounding of the states, 1e-16, grows by 1 / (2 beta).
    _assert_golden(model, record, f"ep_T{steps}_beta{beta}", 1e-9)
    torch.testing.assert_close(learned.cost[0], record["loss"], rtol=1e-9, atol=1e-9)


def _small() -> tuple[CET, Tensor, Tensor]:
    """Weights strong enough that attention and memory matter, weak enough that the relaxation converges."""
    torch.manual_seed(0)
    model = CET(**golden_cet.SMALL, num_memories=5, init_std=0.12, attention_std=0.2).double()
    images = torch.rand(3, 2, 8, 8, dtype=torch.float64) * 2 - 1
    masked = images.clone()
    masked[:, :, :4] = 0
    return model, masked, images


def _flat(model: CET) -> Tensor:
    return torch.cat([value.flatten() for value in _gradients(model).values()])


def _by(learn: Any, *arguments: Any) -> Tensor:
    model, masked, images = _small()
    learn(model, masked, images, *arguments)
    return _flat(model)


@pytest.mark.slow
@pytest.mark.parametrize("step_size", [1.0, 0.1])
@pytest.mark.parametrize("steps", [2, 5, 20])
def test_equilibrium_propagation_is_truncated_backpropagation_for_a_small_nudge(steps: int, step_size: float) -> None:
    """Where the free phase has converged; 1e-5, for beta = 1e-3 leaves beta^2."""
    phases = Phases(int(200 / step_size), steps, 1e-3, step_size)
    found, expected = _by(equilibrium_propagation, phases), _by(truncated_backpropagation, phases)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.slow
def test_its_error_falls_as_beta_squared_over_three_decades() -> None:
    expected = _by(full_backpropagation, 600)
    errors = []
    for beta in (3e-2, 3e-3, 3e-4, 3e-5):
        found = _by(equilibrium_propagation, Phases(600, 600, beta))
        errors.append(float((found - expected).norm() / expected.norm()))
    falls = [first / second for first, second in itertools.pairwise(errors)]
    assert all(80 < fall < 125 for fall in falls), errors


def test_no_graph_is_recorded_anywhere() -> None:
    model, masked, images = _small()
    with torch.autograd.graph.saved_tensors_hooks(lambda _: pytest.fail("autograd keeps a tensor"), lambda kept: kept):
        learned = equilibrium_propagation(model, masked, images, Phases(30, 5))
    assert not learned.cost.requires_grad
    assert all(parameter.grad is not None and parameter.grad.grad_fn is None for parameter in model.parameters())


def test_gradients_are_added_to_what_lies_there_and_averaged_over_the_batch() -> None:
    model, masked, images = _small()
    phases = Phases(30, 5)
    alone = []
    for number in range(3):
        model.zero_grad()
        equilibrium_propagation(model, masked[number : number + 1], images[number : number + 1], phases)
        alone.append(_flat(model).clone())
    model.zero_grad()
    equilibrium_propagation(model, masked, images, phases)
    together = _flat(model).clone()
    torch.testing.assert_close(together, torch.stack(alone).mean(0), rtol=1e-9, atol=1e-11)
    equilibrium_propagation(model, masked, images, phases)
    torch.testing.assert_close(_flat(model), 2 * together, rtol=1e-9, atol=1e-11)
