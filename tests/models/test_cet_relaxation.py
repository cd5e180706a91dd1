"""Prepared steps against those of the definition: 1e-12 in float64, 5e-5 in float32, which its own steps lose."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paper_repro.kernels.preferences import prefer
from paper_repro.models import cet as cet_energy
from paper_repro.models.cet import (
    CET,
    CETClamped,
    CETNudge,
    CETState,
    PreparedSteps,
    captured,
)
from paper_repro.models.descent import Trajectory
from paper_repro.tests.support import golden_cet
from paper_repro.tests.support.golden_cet import SMALL

NARROW = {"channels": 1, "size": 9, "patch": 9, "stride": 3, "width": 7, "num_heads": 1, "head_width": 5}
"""One token."""
DEEP = {"channels": 1, "size": 12, "patch": 6, "stride": 2, "width": 9, "num_heads": 3, "head_width": 2}
"""Each block in up to nine patches."""


def _model(sizes: dict[str, int] = SMALL, **options: Any) -> tuple[CET, Tensor]:
    model = golden_cet.small(sizes, **options)
    return model, torch.randn(3, sizes["channels"], sizes["size"], sizes["size"], dtype=torch.float64)


def _nudge(model: CET, images: Tensor) -> CETNudge:
    return CETNudge(model.patches.blocks(images.flip(0)), torch.tensor([0.2, -0.1, 0.05], dtype=images.dtype))


def _close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), two.detach().double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", [1, 2, 1024])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("nudged", [False, True])
@pytest.mark.parametrize("step_size", [1.0, 0.1])
@pytest.mark.parametrize("sizes", [SMALL, NARROW, DEEP])
def test_prepared_steps_are_those_of_the_definition(sizes, step_size, nudged, dtype, rows, monkeypatch):
    model, images = _model(sizes)
    monkeypatch.setitem(cet_energy.ROWS, "cpu", rows * model.patches.count)  # one image, two, all at once
    with torch.no_grad():
        clamped = model.clamp(images)
        z, y = model.first(clamped)
        state, nudge = CETState(z.mT.contiguous().mT, y), _nudge(model, images) if nudged else None
        own = copy.deepcopy(model).to(dtype)
        given = [type(part)(*(tensor.to(dtype) for tensor in part)) for part in (state, clamped)]
        narrow = None if nudge is None else CETNudge(*(tensor.to(dtype) for tensor in nudge))
        prepared = PreparedSteps(own, *given, step_size, narrow)
        expected, found = state, prepared.state
        for number in range(12):
            expected = model.step(expected, clamped, step_size, nudge)
            # Its own state goes on; another one is taken over.
            found = prepared(found if number != 6 else CETState(*map(torch.clone, found)), number)
            tolerance = 1e-12 if dtype == torch.float64 else 5e-5
            _close(found, expected, tolerance)
        _close(given[0], state, 1e-6)


def test_traces_are_those_of_the_definition() -> None:
    model, images = _model()
    clamped = model.clamp(images)
    state = model.first(clamped)
    every = range(21)
    expected = model.relax(state, clamped, 20, 0.2, energies_at=every, states_at=every)
    with torch.no_grad():
        found = model.relax(state, clamped, 20, 0.2, energies_at=every, states_at=every)
        _close(
            [*found.state, *found.states, found.change, found.energies],
            [*expected.state, *expected.states, expected.change, expected.energies],
            1e-11,
        )


def test_with_factors_in_bfloat16_sums_are_float32() -> None:
    model, images = _model(DEEP)
    model, images = model.float(), images.float()
    with torch.no_grad():
        clamped = model.clamp(images)
        nudge = _nudge(model, images)
        exact = PreparedSteps(model, model.first(clamped), clamped, 1.0, nudge)
        model.precision = "bfloat16"
        rounded = PreparedSteps(model, model.first(clamped), clamped, 1.0, nudge)
        assert rounded.hidden.dtype == rounded.weights.dtype == torch.bfloat16
        for number in range(5):
            exact(exact.state, number)
            rounded(rounded.state, number)
    for one, two in zip(rounded.state, exact.state, strict=True):
        assert one.dtype == torch.float32
        # Rounded on every processor: 2^-9 of each factor.
        assert 1e-5 < float((one - two).norm() / two.norm()) < 2e-2


def test_what_only_a_gpu_has_is_refused_elsewhere() -> None:
    model, images = _model(precision="tf32")
    with torch.no_grad(), pytest.raises(ValueError, match="precision='tf32' needs a CUDA GPU, got a model on cpu"):
        model(images, 2)
    model, images = _model()
    with prefer(cuda_graph=True):
        with torch.no_grad(), pytest.raises(ValueError, match="a CUDA graph needs a CUDA GPU"):
            model(images, 2)
        model(images, 2)


@pytest.mark.parametrize("nudged", [False, True])
def test_a_captured_relaxation_takes_its_start_and_the_weights_anew(nudged, monkeypatch):
    """Without a GPU: what stands for a graph does the captured work again and leaves its end where the first lay."""

    def stand_in(work: Callable[[], Trajectory[CETState]]) -> tuple[Callable[[], None], Trajectory[CETState]]:
        first = work()

        def replay() -> None:
            again = work()
            for own, part in zip([*first.state, first.change], [*again.state, again.change], strict=True):
                own.copy_(part)

        return replay, first

    monkeypatch.setattr(cet_energy, "capture", stand_in)
    model, images = _model()
    with torch.no_grad():
        ends = []
        for scale in (1.0, 0.5, -2.0):
            model.memory.weight.mul_(0.9)
            clamped = model.clamp(scale * images)
            state, nudge = model.first(clamped), _nudge(model, scale * images) if nudged else None
            found = captured(model, state, clamped, 0.3, nudge, 4)
            expected = model.relax(state, clamped, 4, 0.3, nudge)
            _close([*found.state, found.change], [*expected.state, expected.change])
            ends.append((found, expected))
        for found, expected in ends:
            _close(found.state, expected.state)


class Slower(CET):
    def step(self, state: CETState, clamped: CETClamped, step_size: float = 1.0, nudge: Any = None) -> CETState:
        return super().step(state, clamped, step_size / 2, nudge)


def test_steps_of_a_subclass_are_its_own_also_where_cets_are_prepared() -> None:
    model, images = _model()
    model.__class__ = Slower
    clamped = model.clamp(images)
    state = model.first(clamped)
    with torch.no_grad():
        found = model.relax(state, clamped, 3).state
    for _ in range(3):
        state = model.step(state, clamped)
    _close(found, state)
    model.__class__ = CET
    with torch.no_grad():  # within torch.func nothing is written in place
        _close([torch.func.vmap(lambda image: model(image[None], 3)[0])(images)], [model(images, 3)])
