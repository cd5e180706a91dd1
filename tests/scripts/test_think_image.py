"""What think.py shows of images: the EBT's descent from a noised one, and CET's relaxation of a masked one."""

import itertools
from typing import Any

import pytest
import torch

from paper_repro import load
from paper_repro.datamodules.image_sources import Faces
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.cet import CET
from paper_repro.models.ebt import DIRECT, ThinkingSettings
from paper_repro.models.ebt_image import denoised
from paper_repro.probes.thoughts import Manner, complete_image, think_of_image


def test_an_image_is_noised_and_descends_as_in_evaluation() -> None:
    model: Any = load("ebt_image")
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    settings = ThinkingSettings(rule=DIRECT, num_steps=1)
    found = think_of_image(model, image, 99, 3, Manner(settings=settings))
    noise = (found.found[0] - diffusion.signal(99) * image) / diffusion.noise_std(99)
    assert 0.7 < float(noise.std()) < 1.3
    for step, (expected, energy) in enumerate(denoised(model, found.found[:1], 3, settings)):
        assert torch.allclose(found.found[step], expected[0], atol=1e-6)
        assert found.energies[step] == pytest.approx(float(energy), rel=1e-5)
    error = ((found.found[3].clamp(-1, 1) - image) * 127.5).square().mean()
    assert found.psnr[3] == pytest.approx(10 * float((255**2 / error).log10()), abs=1e-3)
    assert found.pictures.shape == (5, 16, 16, 3) and 0 <= found.pictures.min() <= found.pictures.max() <= 1
    other = think_of_image(model, image, 99, 1, Manner(settings=settings, step_size=5.0))
    assert torch.equal(other.found[0], found.found[0]) and not torch.allclose(other.found[1], found.found[1])
    with pytest.raises(ValueError, match="one sample"):
        think_of_image(model, image, 99, 1, Manner(2, settings))


@torch.no_grad()
def test_cet_completes_a_masked_image_and_its_energy_falls() -> None:
    torch.manual_seed(0)
    model = CET(1, 12, 4, 4, width=16, num_heads=2, head_width=8, num_memories=8, start="drive")
    image = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(1)) * 2 - 1
    data = MaskedImageData(source=Faces(size=12), batch_size=1, cell=3)
    masked = data.masked(image[None], torch.Generator().manual_seed(0))[0]
    found = complete_image(model, image, masked, num_steps=4, step_size=0.5)
    assert torch.equal(found.found[0], masked)
    cells = (masked == 0).view(4, 3, 4, 3).permute(0, 2, 1, 3).reshape(16, 9)
    assert cells.all(1).sum() == 8 and cells.any(1).sum() == 8, "half of the cells, each of them whole"
    assert torch.equal(masked[masked != 0], image[masked != 0])
    clamped = model.clamp(masked[None])
    state = model.first(clamped)
    for step in range(5):
        assert found.energies[step] == pytest.approx(float(model.energy(state, clamped)), rel=1e-4)
        if step:
            assert torch.allclose(found.found[step], model.patches.images(state.y)[0], atol=1e-5)
        state = model.step(state, clamped, 0.5)
    assert all(after < before for before, after in itertools.pairwise(found.energies))
    error = ((masked - image) * 127.5).square().mean()
    assert found.psnr[0] == pytest.approx(10 * float((255**2 / error).log10()), abs=0.05)
