from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.models import cet as cet_energy
from paper_repro.models.cet import CET, CETNudge, CETPatches, CETState
from paper_repro.models.common import project
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
def test_golden_cet_energies_and_their_gradients(path: Path) -> None:
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


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_cet_gradients_of_the_parameters(path: Path) -> None:
    record, model, state = _instance(path)
    found = model.parameter_gradients(state, model.clamp(record["xbar"][None]), torch.ones(1, dtype=torch.float64))
    expected = golden_cet.ours(model, record, "gradth")
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, value in expected.items():
        _close(found[name], value)


@pytest.mark.parametrize("start", ["rand", "zero"])
@pytest.mark.parametrize("step_size", [1.0, 0.1])
@pytest.mark.parametrize("path", ENERGIES)
def test_golden_cet_trajectories(path: Path, step_size: float, start: str) -> None:
    record, model, _ = _instance(path)
    clamped, place = model.clamp(record["xbar"][None]), f"traj_eps{step_size}_{start}"
    state = golden_cet.state(model, record[f"{place}_z"][0], record[f"{place}_y"][0])
    found = model.relax(state, clamped, 10, step_size, energies_at=range(11))
    _close(found.energies[:, 0], record[f"{place}_E"])
    for number in range(1, 11):
        state = model.relax(state, clamped, 1, step_size).state
        expected = golden_cet.state(model, record[f"{place}_z"][number], record[f"{place}_y"][number])
        _close(state.z, expected.z)
        _close(state.y, expected.y)


@pytest.mark.parametrize("path", ENERGIES)
def test_golden_cet_nudged_trajectory(path: Path) -> None:
    record, model, _ = _instance(path)
    clamped, place = model.clamp(record["xbar"][None]), "nudged_traj_eps1_beta0.2"
    nudge = CETNudge(model.patches.blocks(record["x"][None]), torch.tensor([0.2], dtype=torch.float64))
    state = golden_cet.state(model, record["z0"], record["y0"])
    for number in range(1, 6):
        state = model.step(state, clamped, 1.0, nudge)
        expected = golden_cet.state(model, record[f"{place}_z"][number], record[f"{place}_y"][number])
        _close(state.z, expected.z)
        _close(state.y, expected.y)


def _drawn(**options: Any) -> tuple[CET, Tensor]:
    """D = 6, 9 tokens; two masked images."""
    torch.manual_seed(0)
    sizes = {"channels": 2, "size": 8, "patch": 4, "stride": 2, "width": 6, "num_heads": 2, "head_width": 3}
    model = CET(**sizes, num_memories=5, init_std=0.3, attention_std=0.5, **options).double()
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn_like(parameter.data)
    return model, torch.randn(2, 2, 8, 8, dtype=torch.float64)


def _random_state(model: CET) -> CETState:
    z = project(torch.randn(2, 9, 6, dtype=torch.float64))
    return CETState(
        z.requires_grad_(), model.patches.blocks(torch.randn(2, 2, 8, 8, dtype=torch.float64)).requires_grad_()
    )


@pytest.mark.parametrize("images", [1, 8])
@pytest.mark.parametrize("name", list(ABBREVIATIONS.values()))
def test_each_terms_gradients_are_autograds(name: str, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, masked = _drawn()
    monkeypatch.setitem(cet_energy.ROWS, "cpu", images * model.patches.count)
    term, state = model.terms()[name], _random_state(model)
    patches = model.patches.gather(model.patches.blocks(masked))
    clamped = type(model.clamp(masked))(patches, model.encoder.drive(patches))
    weights = torch.tensor([0.7, -1.3], dtype=torch.float64)
    leaves = [*state, *term.parameters()]
    found = torch.autograd.grad((weights * term.energy(state, clamped)).sum(), leaves, allow_unused=True)
    own = term.gradient(state, clamped)
    for value, expected in zip(own, found, strict=False):
        if expected is None:
            assert value is None
        else:
            assert value is not None
            along = weights.view(-1, *[1] * (value.ndim - 1)) * value
            torch.testing.assert_close(along, expected, rtol=1e-12, atol=1e-12)
    local = term.parameter_gradients(state, clamped, weights)
    for (label, _), expected in zip(term.named_parameters(), found[2:], strict=True):
        assert expected is not None
        torch.testing.assert_close(local[label], expected, rtol=1e-12, atol=1e-12)


def test_patches_are_those_of_a_convolution() -> None:
    patches = CETPatches(3, 12, 6, 2)
    images, kernel = torch.randn(2, 3, 12, 12), torch.randn(5, 3, 6, 6)
    matrix = patches.from_convolution(kernel)
    found = (patches.gather(patches.blocks(images)) @ matrix.T).mT
    torch.testing.assert_close(found, functional.conv2d(images, kernel, stride=2).flatten(2), rtol=1e-5, atol=1e-4)
    tokens = torch.randn(2, patches.count, 5)
    drawn = patches.images(patches.scatter(tokens @ matrix))
    grid = tokens.mT.unflatten(2, (patches.side, patches.side))
    torch.testing.assert_close(drawn, functional.conv_transpose2d(grid, kernel, stride=2), rtol=1e-5, atol=1e-4)
    assert torch.equal(patches.to_convolution(matrix), kernel)
    assert torch.equal(patches.images(patches.blocks(images)), images)


def test_projected_tokens_have_mean_0_and_population_deviation_1_and_are_the_nearest_such() -> None:
    z = torch.randn(4, 7, dtype=torch.float64)
    found = project(z)
    torch.testing.assert_close(found.mean(-1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(found.square().mean(-1), torch.ones(4, dtype=torch.float64), rtol=1e-11, atol=0)
    other = project(found + 0.1 * torch.randn_like(found))
    assert bool(((z - found).norm(dim=-1) < (z - other).norm(dim=-1)).all())


def test_the_papers_size_has_5_475_843_parameters_and_121_tokens() -> None:
    with torch.device("meta"):
        model = CET()
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_475_843
    assert model.patches.count == 121


def test_zeros_are_where_the_first_step_starts_that_ends_at_the_drive() -> None:
    model, masked = _drawn(start="zeros")
    clamped = model.clamp(masked)
    state = model.step(model.first(clamped), clamped)
    torch.testing.assert_close(state.z, project(clamped.drive + model.position.bias), rtol=1e-12, atol=1e-12)


def test_a_tolerance_ends_the_relaxation_where_no_image_moves_more() -> None:
    model, masked = _drawn()
    clamped = model.clamp(masked)
    long = model.relax(model.first(clamped), clamped, 400, 0.2, energies_at=range(401))
    assert long.changes is not None
    tolerance = float(long.changes[60].max())
    short = model.relax(model.first(clamped), clamped, 400, 0.2, tolerance=tolerance)
    assert short.num_steps <= 61 < long.num_steps == 400
    assert short.change is not None and bool((short.change <= tolerance).all())
    assert long.energies.shape == (401, 2) and long.changes.shape == (400, 2)


def test_a_small_step_lowers_the_energy_of_every_image() -> None:
    model, masked = _drawn()
    clamped = model.clamp(masked)
    energies = model.relax(model.first(clamped), clamped, 50, 0.01, energies_at=range(51)).energies
    assert bool((energies.diff(dim=0) < 0).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 7}, "patches of 20 at stride 7 do not tile images of 120"),
        ({"size": 125}, "do not tile images of 125"),
        ({"patch": 130, "stride": 10}, "the patch must fit"),
        ({"num_heads": 0}, "num_heads"),
        ({"gamma": 0.0}, "gamma"),
        ({"num_memories": 0}, "num_memories"),
        ({"start": "random"}, "start must be one of drive, zeros"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        CET(**options)


def test_images_of_another_shape_are_refused() -> None:
    model, _ = _drawn()
    with pytest.raises(ValueError, match=r"shape \(B, 2, 8, 8\), got \(1, 1, 8, 8\)"):
        model.clamp(torch.zeros(1, 1, 8, 8))
