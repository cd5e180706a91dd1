"""Training on images and on frames: the losses by hand, what is measured, resuming draws, and what is refused."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from paper_repro.base.errors import UsageError
from paper_repro.lightning_modules.ebt_denoising import DiffusionDenoising, EBTDenoising
from paper_repro.lightning_modules.ebt_video import EBTVideo, TransformerVideo
from paper_repro.lightning_modules.prediction_descent import ReplaySettings
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import DIRECT, LatentEBT, LatentTransformer, ThinkingSettings
from paper_repro.models.ebt_image import DiT, ImageEBT, denoised
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Constant

IMAGE: dict[str, Any] = {"image_size": 8, "patch": 4, "width": 16, "num_heads": 2, "num_layers": 1}
FRAMES: dict[str, Any] = {"state_size": 6, "block_length": 5, "width": 8, "num_heads": 2, "num_layers": 1}
OPTIMIZER = partial(torch.optim.AdamW, lr=0.01)
ONE, TWO = ThinkingSettings(rule=DIRECT, num_steps=1), ThinkingSettings(rule=DIRECT, num_steps=2)


def denoising(**changes: Any) -> EBTDenoising:
    torch.manual_seed(0)
    return EBTDenoising(ImageEBT(**IMAGE, step_size=50.0), OPTIMIZER, Constant(), **{"thinking": ONE, **changes})


def modules() -> list[PaperModule]:
    torch.manual_seed(0)
    return [
        denoising(thinking=TWO),
        DiffusionDenoising(DiT(**IMAGE), OPTIMIZER, Constant()),
        EBTVideo(LatentEBT(**FRAMES, step_size=20.0), OPTIMIZER, Constant(), TWO),
        TransformerVideo(LatentTransformer(**FRAMES), OPTIMIZER, Constant()),
    ]


def batch_of(module: PaperModule) -> torch.Tensor:
    torch.manual_seed(1)
    is_video = isinstance(module, EBTVideo | TransformerVideo)
    return torch.randn(4, 6, 6) if is_video else torch.rand(4, 3, 8, 8) * 2 - 1


@pytest.mark.parametrize("place", range(4))
def test_the_loss_falls(place: int) -> None:
    module = modules()[place]
    batch = batch_of(module)
    groups, _ = module.groups_and_schedules()
    optimizer, losses = module.optimizer(groups), []
    for step in range(60):
        loss, _ = module.loss_and_carry(batch, module.draws_of(batch, step, 0, batch.device), {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.97 * sum(losses[:10])
    metrics = module.new_metrics()
    with torch.no_grad():
        module.update_metrics(metrics, batch)
    found = {name: float(metric.compute()) for name, metric in metrics.items()}
    if "mse" in found:
        assert found["psnr"] == pytest.approx(10 * torch.tensor(255**2 / found["mse"]).log10().item(), abs=1e-3)
        assert found["image_psnr"] >= found["psnr"] - 1e-4


def test_the_noised_image_is_the_start_and_smooth_l1_the_error() -> None:
    module = denoising()
    batch = batch_of(module)
    draws = module.draws_of(batch, 0, 0, batch.device)
    loss, _ = module.loss_and_carry(batch, draws, {})
    # At its start the model's energy is zero, so the prediction is the noised image.
    noise = module.model.patches.joined(draws["start"])
    noised = diffusion.noised(batch, torch.full((4,), 99), noise)
    torch.testing.assert_close(loss, functional.smooth_l1_loss(noised, batch))
    images = [image for image, _ in denoised(module.model, noised, 3)]
    assert len(images) == 4 and all(torch.equal(image, images[0]) for image in images)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="time"):
        denoising(time=1000)
    with pytest.raises(UsageError, match=r"module\.replay"):
        denoising(replay=ReplaySettings(capacity=4, rows=1))
    with pytest.raises(UsageError, match="num_landscapes"):
        EBTDenoising(ImageEBT(**IMAGE, num_landscapes=2), OPTIMIZER, Constant(), ONE)
