"""Denoising without a network: the noised image itself, a Wiener filter, total variation.

Letters: B images, C channels, H image side, R reach of a filter, F = (2 R + 1)^2 pixels of its window.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.datamodules.counter_based import data_of
from paper_repro.datamodules.image_sources import TRAIN
from paper_repro.datamodules.images import ImageData
from paper_repro.models import ebt_image as diffusion
from paper_repro.probes.denoising.scores import LEVELS, Scores, noised_batches, plain_images
from paper_repro.probes.pictures import png

Denoise = Callable[[Tensor], Tensor]
"""Images (B, C, H, H) found in noised ones, (B, C, H, H)."""
REACH = 3
RIDGE = 1e-6
WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.6)
"""Weights of total variation; the best on training images is taken."""
NUM_FITTED = 512
"""Training images at most."""


def noised_itself(pairs: Sequence[tuple[Tensor, Tensor]], time: int) -> Denoise:
    """Return what is noised, as it is."""
    return lambda noised: noised


def wiener(pairs: Sequence[tuple[Tensor, Tensor]], time: int) -> Denoise:
    """Fit the linear filter of a window around each pixel, with a constant, by least squares over training images.

    Of stationary images it is the Wiener filter of that reach; each channel is filtered by itself, all with one
    filter.  Beyond its border an image is mirrored.
    """
    parts = [(_windows(noised).flatten(0, 1), images.double().flatten()) for images, noised in pairs]
    gram = sum((windows.T @ windows for windows, _ in parts), torch.zeros(()))  # (F + 1, F + 1)
    right = sum((windows.T @ numbers for windows, numbers in parts), torch.zeros(()))  # (F + 1,)
    gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights = torch.linalg.solve(gram, right)  # (F + 1,)
    return lambda noised: (_windows(noised) @ weights).view_as(noised).to(noised.dtype)


def total_variation(pairs: Sequence[tuple[Tensor, Tensor]], time: int) -> Denoise:
    """Choose the weight of total variation, all channels together (Chambolle), that has the least error on training
    images; images are first divided by what is left of their signal.
    """
    signal = diffusion.signal(time)

    def with_weight(weight: float) -> Denoise:
        return lambda noised: _smoothed(noised / signal, weight)

    def error(weight: float) -> float:
        return sum(float((with_weight(weight)(noised) - images).square().sum()) for images, noised in pairs)

    return with_weight(min(WEIGHTS, key=error))


RULES: dict[str, Callable[[Sequence[tuple[Tensor, Tensor]], int], Denoise]] = {
    "noised": noised_itself,
    "wiener": wiener,
    "total_variation": total_variation,
}


class DenoisingFloor(Task):
    """Measures a rule that needs no network, under the names of a trained model's metrics.

    It is fitted to training images at each level by itself, so it knows the noise of each, which the models do not.
    Metrics: ``<level>_psnr``, ``<level>_image_psnr`` and ``<level>_mse``; strips of images: ``<level>_found.png``; see
    ``Denoising``.

    Args:
        rule: "noised", "wiener" or "total_variation".
        shown: images of a strip.

    Raises:
        ValueError: an unknown rule, or no image of a strip.
    """

    def __init__(self, rule: str = "noised", shown: int = 8) -> None:
        self.rule, self.shown = one_of("rule", rule, RULES), at_least("shown", shown)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(plain_images(data_of(cell.config)), folder / cell.id) for cell in cells]

    def _outcome(self, data: ImageData, folder: Path) -> Outcome:
        outcome = Outcome(FINISHED, data_hashes=data.data_hashes())
        folder.mkdir(parents=True, exist_ok=True)
        for level, time in LEVELS.items():
            denoise, scores = RULES[self.rule](_training_pairs(data, time), time), Scores()
            for index, batch in enumerate(noised_batches(data, time)):
                found = denoise(batch.noised)
                scores.update(found, batch.images)
                if not index:
                    outcome.attach(folder, f"{level}_found.png", png(found[: self.shown]))
            outcome.metrics |= {f"{level}_{kind}": value for kind, value in scores.compute().items()}
        return outcome


def _training_pairs(data: ImageData, time: int) -> list[tuple[Tensor, Tensor]]:
    pairs: list[tuple[Tensor, Tensor]] = []
    for batch in noised_batches(data, time, TRAIN):
        pairs.append((batch.images, batch.noised))
        if sum(len(images) for images, _ in pairs) >= NUM_FITTED:
            break
    return pairs


def _windows(images: Tensor) -> Tensor:
    """Return the pixels around each pixel, and a one, (B C, H H, F + 1), of images (B, C, H, H)."""
    side = 2 * REACH + 1
    planes = functional.pad(images.double().flatten(0, 1)[:, None], [REACH] * 4, mode="reflect")  # (B C, 1, ., .)
    windows = functional.unfold(planes, side).mT  # (B C, H H, F)
    return torch.cat([windows, torch.ones_like(windows[..., :1])], -1)


def _smoothed(images: Tensor, weight: float) -> Tensor:
    try:
        from skimage.restoration import denoise_tv_chambolle
    except ImportError as error:
        raise UsageError("total variation needs scikit-image: run: pip install scikit-image") from error
    found = [denoise_tv_chambolle(image.double().numpy(), weight, channel_axis=0) for image in images]
    return torch.stack([torch.from_numpy(image) for image in found]).to(images.dtype)
