"""EBT on images and on frames, and diffusion: sizes, patches, starts, both streams, the sampler, what is refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import (
    DIRECT,
    AutoregressiveEBT,
    LatentEBT,
    PredictionStep,
    ThinkingSettings,
    thoughts,
)
from paper_repro.models.ebt_image import ImageEBT
from paper_repro.tests.support.float64 import in_float64, randomised

IMAGE: dict[str, Any] = {"image_size": 8, "patch": 4, "width": 16, "num_heads": 2, "num_layers": 2}
FRAMES: dict[str, Any] = {"state_size": 6, "block_length": 5, "width": 8, "num_heads": 2, "num_layers": 2}
SETTINGS = ThinkingSettings(rule=DIRECT, num_steps=2)


def test_the_first_energies_are_zero_and_the_first_gradient_is_the_head_s() -> None:
    model = ImageEBT(**IMAGE)
    images, noised = torch.randn(2, 2, 3, 8, 8).unbind()
    start = model.patches.cut(noised)
    step = PredictionStep(model.energies(start), model.prediction_embedding.weight, model.step_size, 1, 1, SETTINGS)
    (thought,) = thoughts(step, start)
    assert not thought.energy.any() and torch.equal(thought.prediction, start)
    functional.smooth_l1_loss(thought.prediction, model.patches.cut(images)).backward()
    moved = [name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()]
    assert moved == ["energy_head.weight"]


def test_the_energy_of_a_frame_is_that_of_its_context_and_candidate() -> None:
    model: AutoregressiveEBT = randomised(in_float64(lambda: LatentEBT(**FRAMES)))
    frames = torch.randn(1, 4, 6, dtype=torch.float64)
    candidates = torch.randn(1, 4, 6, dtype=torch.float64) @ model.prediction_embedding.weight.mT
    before = model.energies(frames)(candidates, 0)
    changed = frames.clone()
    changed[:, 2] += 1
    torch.testing.assert_close(model.energies(changed)(candidates, 0)[:, :2], before[:, :2])
    assert (model.energies(changed)(candidates, 0)[:, 2:] != before[:, 2:]).all()
    # An observed frame enters as it would as a candidate.
    torch.testing.assert_close(
        model.embed(frames), frames @ model.prediction_embedding.weight.mT + model.prediction_embedding.bias
    )


def known(noise: Tensor) -> diffusion.Model:
    """A model that knows the noise, and places the variance at its upper bound."""
    return lambda x, times: torch.cat([noise, torch.ones_like(noise)], 1)


def test_the_levels_of_noise_are_the_paper_s() -> None:
    assert diffusion.signal(99) ** 2 == pytest.approx(0.89702, abs=1e-5)
    assert diffusion.noise_std(99) == pytest.approx(0.3209, abs=1e-4)
    assert diffusion.signal(199) ** 2 == pytest.approx(0.65904, abs=1e-5)
    assert diffusion.noise_std(199) == pytest.approx(0.5839, abs=1e-4)
    for time in (-1, 1000, 1.5):
        with pytest.raises(ValueError, match="time"):
            diffusion.signal(time)  # type: ignore[arg-type]


def test_at_time_zero_the_levels_have_one_probability_together() -> None:
    levels = torch.linspace(-1, 1, 256, dtype=torch.float64).view(-1, 1, 1, 1)
    image, times = torch.full_like(levels, 0.3), torch.zeros(256, dtype=torch.int64)
    noise = torch.zeros_like(levels)
    # The model finds the image 0.3 in each x, so that each level is scored by the same law.
    x = diffusion.noised(levels, times, noise)
    kept = diffusion.signal(0) ** 2
    found = (x - math.sqrt(kept) * image) / math.sqrt(1 - kept)
    _, bits = diffusion.losses(known(found), levels, times, noise)
    assert float((-bits * math.log(2)).exp().sum()) == pytest.approx(1, abs=2e-3)


def test_a_model_that_knows_the_noise_finds_the_image_by_any_steps() -> None:
    torch.manual_seed(0)
    image, noise = torch.rand(2, 1, 3, 4, 4, dtype=torch.float64).unbind()
    start = diffusion.noised(image, torch.tensor([20]), noise)

    def model(x: Tensor, times: Tensor) -> Tensor:
        kept = diffusion.signal(int(times[0])) ** 2
        return known((x - math.sqrt(kept) * image) / math.sqrt(1 - kept))(x, times)

    found = list(diffusion.ddim(model, start, 20))
    assert len(found) == 21
    torch.testing.assert_close(found[-1], image)
    assert len(list(diffusion.ddim(model, start, 20, passes=2))) == 42
    for count in (1, 2, 5, 20):
        *before, last = diffusion.ddim(model, start, 20, count)
        assert len(before) == count - 1
        torch.testing.assert_close(last, image)
    for wrong in ({"passes": 0}, {"num_steps": 0}, {"num_steps": 22}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            next(diffusion.ddim(model, start, 20, **wrong))
