"""One image thought about by an EBT: noised, and denoised step by step.

Legend: C channels, H image side, S steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.encoded_files import encoded
from paper_repro.datamodules.pixels import CentralSquare, UnfitError
from paper_repro.metrics.denoising import new_errors, update_errors
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import think
from paper_repro.models.ebt_image import ImageEBT
from paper_repro.probes.thoughts.trace import Manner


@dataclass(frozen=True)
class ImageThought:
    """What was found in a noised image after 0, 1, ..., S steps."""

    original: Tensor
    """The image, (C, H, H) in [-1, 1]."""
    found: Tensor
    """What is noised, and what was found after each step, (S + 1, C, H, H)."""
    energies: list[float]
    """S + 1 of them."""
    psnr: list[float]
    """PSNR in dB against the original, after each is clipped to 8 bits; S + 1 of them."""

    @property
    def pictures(self) -> Any:
        """The original, and each that was found, as an array (S + 2, H, H, C) in [0, 1]."""
        every = torch.cat([self.original[None], self.found]).clamp(-1, 1).add(1).div(2)  # (S + 2, C, H, H)
        return every.permute(0, 2, 3, 1).numpy()


def read_image(path: Path, model: ImageEBT) -> Tensor:
    """Return the central square of an image file as the model reads it, (C, H, H) in [-1, 1].

    Raises:
        UsageError: there is no such file, or it holds no image that can be used.
    """
    try:
        square, _ = CentralSquare(model.patches.image_size)(encoded(path))
    except (UnfitError, FileNotFoundError) as error:
        raise UsageError(f"--image {path}: {error}") from error
    image = torch.from_numpy(square.copy()).permute(2, 0, 1) / 127.5 - 1  # (3, H, H)
    return image if model.patches.channels == 3 else image.mean(0, keepdim=True)


def think_of_image(model: ImageEBT, image: Tensor, time: int, num_steps: int, manner: Manner) -> ImageThought:
    """Noise an image, (C, H, H) in [-1, 1], as at time t, and descend the energy from there.

    Of ``manner`` the rule, alpha and the seed count; there is one sample, and no noise in the steps.

    Raises:
        ValueError: an image of another shape, a time outside 0 ... 999, more than one sample, or as ``think``.
    """
    if manner.num_samples != 1 or manner.settings.noise:
        raise ValueError("an image begins as what is noised: one sample, and no noise in its steps")
    generator = torch.Generator().manual_seed(mix(manner.seed, "image"))
    signal, std = diffusion.signal(time), diffusion.noise_std(time)
    noised = signal * image + std * torch.randn(image.shape, generator=generator)  # (C, H, H)
    start = model.patches.cut(noised[None].to(model.step_size.device))  # (1, T, V)
    settings = replace(manner.settings, num_steps=num_steps, most_steps=None)
    considered = list(think(model, start, start[None], num_steps, settings, manner.step_size))
    found = torch.cat([model.patches.joined(each.predictions[0]) for each in considered]).cpu()  # (S + 1, C, H, H)
    energies = [float(each.energies.sum()) for each in considered]
    return ImageThought(image, found, energies, list(_psnr(found, image)))


def _psnr(found: Tensor, image: Tensor) -> Iterator[float]:
    for each in found:
        errors = new_errors()
        update_errors(errors, each[None], image[None])
        yield float(errors["psnr"].compute())
