"""Completion without a network: blank pixels filled with a mean or with what is smooth; a task that trains nothing.

Letters: B images, C channels, H image side; N training images, D = C H H numbers of an image, K components.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.probes.completion.reconstructions import COMPLETED, ERRORS, IMAGES, MASKED
from paper_repro.probes.completion.tools import first_images
from paper_repro.probes.floor_task import FloorTask
from paper_repro.probes.pictures import png

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Fill = Callable[[Tensor, Tensor], Tensor]
"""What stands in each pixel, (B, C, H, H), from masked images and their blank pixels, (B, 1, H, H)."""


def visible_mean(data: MaskedImageData, num_batches: int) -> Fill:
    """Return each image's own mean: of its visible pixels, channel by channel."""

    def fill(masked: Tensor, blank: Tensor) -> Tensor:
        visible = (~blank).to(masked.dtype)
        return (masked * visible).sum((2, 3), keepdim=True) / visible.sum((2, 3), keepdim=True)

    return fill


def mean_image(data: MaskedImageData, num_batches: int) -> Fill:
    """Return the mean of training images, pixel by pixel."""
    whole = torch.cat([data.train_batch(step)[1] for step in range(num_batches)])
    mean = whole.mean(0)  # (C, H, H)
    return lambda masked, blank: mean.expand_as(masked)


def harmonic(data: MaskedImageData, num_batches: int) -> Fill:
    """Return the harmonic function of the visible pixels: each blank one is the mean of its neighbours.

    The discrete Laplace equation with the visible pixels as its boundary values; the edge of an image adds none, so the
    slope across it is zero (natural conditions).
    """
    from scipy.sparse.linalg import splu

    def fill(masked: Tensor, blank: Tensor) -> Tensor:
        laplacian, found = _laplacian(masked.shape[-1]), masked.clone()
        for image, hidden in zip(found, blank.flatten(1), strict=True):  # (C, H, H), (H H,)
            if bool(hidden.all()):
                raise UsageError("an image without a visible pixel has no harmonic completion: mask_ratio is too large")
            unknown = hidden.nonzero().flatten().numpy()
            pixels = image.flatten(1)  # (C, H H), a view
            if not len(unknown):
                continue
            rows = laplacian[unknown]  # (unknown, H H)
            known = torch.where(hidden, 0.0, pixels).double().numpy()
            solved = splu(rows[:, unknown].tocsc()).solve(-(rows @ known.T))  # (unknown, C)
            pixels[:, hidden] = torch.from_numpy(solved.T).to(pixels.dtype)
        return found

    return fill


@functools.cache
def _laplacian(side: int) -> "csr_array":
    """Return the graph Laplacian of a grid of pixels that each have up to four neighbours, (H H, H H)."""
    from scipy.sparse import csr_array, diags_array, eye_array, kron

    path = diags_array([-1.0, -1.0], offsets=[-1, 1], shape=(side, side))
    path = path - diags_array(path.sum(1))
    whole = eye_array(side)
    return csr_array(kron(path, whole) + kron(whole, path))


COMPONENTS = (4, 8, 16, 32, 64, 128)
"""Numbers of components of the Gaussian; the best on training batches that were held out is taken."""
HELD_OUT = 4
"""One of so many training batches is held out for that."""
MOST_FITTED = 1024
"""Training images that the Gaussian is fitted to, at most."""
SMALLEST = 1e-6
"""Least variance of the noise, as a share of the largest."""


@dataclass(frozen=True)
class Gaussian:
    """Images as a Gaussian of few directions and one variance in all others (probabilistic principal components)."""

    mean: Tensor
    """(D,)."""
    directions: Tensor
    """(D, K), each of the length of its standard deviation beyond the noise."""
    noise: float
    """The variance in every other direction."""

    @classmethod
    def of(cls, images: Tensor, components: int) -> "Gaussian":
        """Fit images (N, D) by maximum likelihood."""
        mean = images.mean(0)
        _, values, vectors = torch.linalg.svd(images - mean, full_matrices=False)
        variances = values.square() / len(images)  # (min(N, D),)
        left = images.shape[1] - components
        noise = max(float(variances[components:].sum()) / left, float(variances[0]) * SMALLEST)
        lengths = (variances[:components] - noise).clamp(min=0).sqrt()
        return cls(mean, vectors[:components].T * lengths, noise)

    def fill(self, masked: Tensor, blank: Tensor) -> Tensor:
        """Return the mean of each image (B, C, H, H), given its visible pixels."""
        found = []
        for image, hidden in zip(masked.double(), blank.expand_as(masked), strict=True):
            seen = ~hidden.flatten()  # (D,)
            known = self.directions[seen]  # (seen, K)
            gram = known.T @ known + self.noise * torch.eye(known.shape[1], dtype=known.dtype)
            weights = torch.linalg.solve(gram, known.T @ (image.flatten()[seen] - self.mean[seen]))  # (K,)
            found.append((self.mean + self.directions @ weights).view_as(image))
        return torch.stack(found).to(masked.dtype)


def gaussian(data: MaskedImageData, num_batches: int) -> Fill:
    """Return the conditional mean of a Gaussian of the training images, given the visible pixels."""
    most_batches = max(HELD_OUT, MOST_FITTED // data.batch_size)
    batches = [data.train_batch(step) for step in range(min(num_batches, most_batches))]
    kept = [images for step, (_, images) in enumerate(batches) if step % HELD_OUT]
    if not kept:
        raise UsageError(f"a Gaussian needs {HELD_OUT} training batches or more, num_batches is {num_batches}")
    images = torch.cat(kept).flatten(1).double()  # (N, D)
    most = min(len(images), images.shape[1]) - 1

    def error(components: int) -> float:
        fill, total = Gaussian.of(images, components).fill, 0.0
        for masked, whole in batches[::HELD_OUT]:
            blank = data.blank(masked)
            total += float((torch.where(blank, fill(masked, blank), masked) - whole).square().sum())
        return total

    best = min(dict.fromkeys(min(count, most) for count in COMPONENTS), key=error)
    everything = torch.cat([images for _, images in batches]).flatten(1).double()
    return Gaussian.of(everything, best).fill


RULES: dict[str, Callable[[MaskedImageData, int], Fill]] = {
    "visible_mean": visible_mean,
    "mean_image": mean_image,
    "harmonic": harmonic,
    "gaussian": gaussian,
}


class CompletionFloor(FloorTask):
    """Copies the visible pixels and fills the blank ones by a rule, under the names of a trained model's metrics.

    Metrics: ``<split>_mse``, over all pixels, and ``completed_mse`` of the first test images; strips of these as
    ``Reconstructions`` leaves them.

    Args:
        rule: "visible_mean", "mean_image", "harmonic" or "gaussian".
        num_images: of the strips.
        num_batches: training batches that the mean image or the Gaussian is of.

    Raises:
        ValueError: an unknown rule, or a number below 1.
    """

    kinds = (MaskedImageData,)
    takes = "takes masked images"

    def __init__(self, rule: str = "visible_mean", num_images: int = 16, num_batches: int = 64) -> None:
        self.rule, self.num_images = one_of("rule", rule, RULES), at_least("num_images", num_images)
        self.num_batches = at_least("num_batches", num_batches)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(self.data_of(cell.config), folder / cell.id) for cell in cells]

    def _outcome(self, data: MaskedImageData, folder: Path) -> Outcome:
        fill = RULES[self.rule](data, self.num_batches)

        def completed(masked: Tensor) -> Tensor:
            blank = data.blank(masked)  # (B, 1, H, H)
            return torch.where(blank, fill(masked, blank), masked)

        outcome = Outcome(FINISHED, data_hashes=data.data_hashes())
        for split in data.splits:
            errors = [_errors(completed(masked), images) for masked, images in data.evaluation_batches(split)]
            outcome.metrics[f"{split}_mse"] = float(torch.cat(errors).mean())
        masked, images = first_images(data, self.num_images, torch.device("cpu"))
        found = completed(masked)
        errors_of_first = _errors(found, images)
        outcome.metrics["completed_mse"] = float(errors_of_first.mean())
        folder.mkdir(parents=True, exist_ok=True)
        for name, pictures in ((IMAGES, images), (MASKED, masked), (COMPLETED, found)):
            outcome.attach(folder, name, png(pictures))
        outcome.attach(folder, ERRORS, json.dumps([float(f"{error:.5g}") for error in errors_of_first]).encode())
        return outcome


def _errors(found: Tensor, images: Tensor) -> Tensor:
    """Return the mean squared error of each image, (B,)."""
    return (found - images).square().flatten(1).mean(1)
