from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.models import cet
from paper_repro.models.cet import (
    CET,
    CETNudge,
    CETState,
    Phases,
    cost,
    equilibrium_propagation,
    full_backpropagation,
    truncated_backpropagation,
)
from paper_repro.tests.support import golden, golden_cet

ENERGIES = golden.files("cet", "cet_energy*.npz")
ABBREVIATIONS = {"enc": "encoder", "pos": "position", "mem": "memory", "att": "attention", "dec": "decoder"}


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9 * max(1.0, float(expected.abs().max())))


def _instance(path: Path) -> tuple[dict[str, Any], CET, CETState]:
    """The record, the model, and (z0, y_test)."""
    record = golden.read(path)
    model = golden_cet.build(record)
    return record, model, golden_cet.state(model, record["z0"], record["y_test"])


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_cet_energies_and_all_gradients(path: Path) -> None:
    record, model, state = _instance(path)
    clamped = model.clamp(record["xbar"][None])
    energies = model.energies(state, clamped)
    gradient = model.gradient(state, clamped)
    _close(model.energy(state, clamped)[0], record["E_total"])
    for short, name in ABBREVIATIONS.items():
        _close(energies[name][0], record[f"E_{short}"])
        by_z = model.terms()[name].gradient(state, clamped).z
        assert by_z is not None
        _close(by_z[0].mT, record[f"gradz_{short}"])
    _close(gradient.z[0].mT, record["grad_z"])
    _close(model.patches.images(gradient.y)[0], record["grad_y"])

    found = model.parameter_gradients(state, clamped, torch.ones(1, dtype=torch.float64))
    expected = golden_cet.ours(model, record, "gradth")
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, value in expected.items():
        _close(found[name], value)


def _at(record: dict[str, Any], model: CET, place: str, number: int) -> CETState:
    return golden_cet.state(model, record[f"{place}_z"][number], record[f"{place}_y"][number])


@pytest.mark.parametrize("start", ["rand", "zero"])
@pytest.mark.parametrize("step_size", [1.0, 0.1])
@pytest.mark.parametrize("path", ENERGIES)
def test_golden_cet_trajectories(path: Path, step_size: float, start: str) -> None:
    record, model, _ = _instance(path)
    clamped, place = model.clamp(record["xbar"][None]), f"traj_eps{step_size}_{start}"
    state = _at(record, model, place, 0)
    found = model.relax(state, clamped, 10, step_size, energies_at=range(11))
    _close(found.energies[:, 0], record[f"{place}_E"])
    for number in range(1, 11):
        state = model.relax(state, clamped, 1, step_size).state
        for one, expected in zip(state, _at(record, model, place, number), strict=True):
            _close(one, expected)


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_cet_nudged_trajectory(path: Path) -> None:
    record, model, _ = _instance(path)
    clamped, place = model.clamp(record["xbar"][None]), "nudged_traj_eps1_beta0.2"
    nudge = CETNudge(model.patches.blocks(record["x"][None]), torch.tensor([0.2], dtype=torch.float64))
    state = golden_cet.state(model, record["z0"], record["y0"])
    for number in range(1, 6):
        state = model.step(state, clamped, 1.0, nudge)
        for found, expected in zip(state, _at(record, model, place, number), strict=True):
            _close(found, expected)


FILES = golden.files("cet", "cet_ep*.npz")


def _episode(path: Path) -> tuple[dict[str, Any], CET]:
    """The record, and the model, which starts where the record starts."""
    record = golden.read(path)
    model = golden_cet.build(record)
    start = golden_cet.state(model, record["z0"], record["y0"])
    model.first = lambda clamped: start  # type: ignore[method-assign]
    return record, model


def _gradients(model: CET) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _assert_golden(model: CET, record: dict[str, Any], kind: str, tolerance: float = 1e-9) -> None:
    found, expected = _gradients(model), golden_cet.ours(model, record, kind)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("path", FILES)
def test_golden_cet_free_state_and_loss(path: Path, graded: bool) -> None:
    record, model = _episode(path)
    with torch.set_grad_enabled(graded):  # without gradients by prepared steps
        clamped = model.clamp(record["xbar"][None])
        free = model.relax(model.first(clamped), clamped, 150).state
    expected = golden_cet.state(model, record["free_z"], record["free_y"])
    for found, value in zip(free, expected, strict=True):
        torch.testing.assert_close(found.detach(), value, rtol=1e-9, atol=1e-9)
    loss = cost(free, model.patches.blocks(record["x"][None]))[0].detach()
    torch.testing.assert_close(loss, record["loss"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("path", FILES)
def test_golden_cet_backpropagation(path: Path) -> None:
    record, model = _episode(path)
    full_backpropagation(model, record["xbar"][None], record["x"][None], 150)
    _assert_golden(model, record, "bptt_full")
    model.zero_grad()
    truncated_backpropagation(model, record["xbar"][None], record["x"][None], Phases(150, 5))
    _assert_golden(model, record, "tbpte5")


@pytest.mark.parametrize(("steps", "beta"), [(150, 0.1), (150, 0.01), (5, 0.01)])
@pytest.mark.parametrize("path", FILES)
def test_golden_cet_equilibrium_propagation(path: Path, steps: int, beta: float) -> None:
    record, model = _episode(path)
    learned = equilibrium_propagation(model, record["xbar"][None], record["x"][None], Phases(150, steps, beta))
    # A difference of two states over 2 beta: the rounding of the states, 1e-16, grows by 1 / (2 beta).
    _assert_golden(model, record, f"ep_T{steps}_beta{beta}", 1e-9)
    torch.testing.assert_close(learned.cost[0], record["loss"], rtol=1e-9, atol=1e-9)


def _flat(model: CET) -> Tensor:
    return torch.cat([value.flatten() for value in _gradients(model).values()])


def test_gradients_are_added_to_what_lies_there_and_averaged_over_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = golden_cet.small(attention_std=0.2)
    images = torch.rand(3, 2, 8, 8, dtype=torch.float64) * 2 - 1
    masked = images * (torch.arange(8) > 3).view(8, 1)
    monkeypatch.setitem(cet.ROWS, "cpu", 2 * model.patches.count)  # hidden numbers of two images at once
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
