"""Trivial baselines of images: rules that fill blank pixels or remove noise, without training a network.

Letters: B images, C channels, H image side; N training images, D = C H H numbers of an image, K components; R reach of
a filter, F = (2 R + 1)^2 pixels of its window.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from paper_repro.base.errors import UsageError, one_of
from paper_repro.cells.tasks import Findings
from paper_repro.datamodules.image_sources import TRAIN
from paper_repro.datamodules.images import ImageData, MaskedImageData
from paper_repro.metrics.pooled import computed_errors, new_errors, update_errors
from paper_repro.models import ebt_image as diffusion
from paper_repro.probes.attachments import png
from paper_repro.probes.completion import first_images, strips_of
from paper_repro.probes.denoising import LEVELS, NUM_SHOWN, noised_batches, plain_images
from paper_repro.probes.floors import FloorTask

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Fill = Callable[[Tensor, Tensor], Tensor]
"""Each pixel, (B, C, H, H), from masked images and their blank pixels, (B, 1, H, H)."""
NUM_BATCHES = 64  # training batches that the mean image or the Gaussian is of, at most
COMPONENTS = (4, 8, 16, 32, 64, 128)
"""Numbers of components of the Gaussian; the best on training batches that were held out is taken."""
HELD_OUT = 4  # one of so many training batches is held out for that
MOST_FITTED = 1024  # training images that the Gaussian is fitted to, at most
SMALLEST = 1e-6  # least variance of the noise, as a share of the largest
Denoise = Callable[[Tensor], Tensor]  # images (B, C, H, H) found in noised ones, (B, C, H, H)
REACH = 3
RIDGE = 1e-6
WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.6)
"""Weights of total variation; the best on training images is taken."""
NUM_FILTERED = 512  # training images that a filter is fitted to, at most


# Completion.


def visible_mean(data: MaskedImageData) -> Fill:
    """Return each image's own mean: of its visible pixels, channel by channel."""

    def fill(masked: Tensor, blank: Tensor) -> Tensor:
        visible = (~blank).to(masked.dtype)
        return (masked * visible).sum((2, 3), keepdim=True) / visible.sum((2, 3), keepdim=True)

    return fill


def mean_image(data: MaskedImageData) -> Fill:
    """Return the mean of training images, pixel by pixel."""
    mean = torch.cat([data.train_batch(step)[1] for step in range(NUM_BATCHES)]).mean(0)  # (C, H, H)
    return lambda masked, blank: mean.expand_as(masked)


def harmonic(data: MaskedImageData) -> Fill:
    """Return the harmonic function of the visible pixels: each blank one is the mean of its neighbours.

    The discrete Laplace equation with the visible pixels as boundary values; the slope across an image's edge is zero.
    """
    from scipy.sparse.linalg import splu

    def fill(masked: Tensor, blank: Tensor) -> Tensor:
        laplacian, found = _laplacian(masked.shape[-1]), masked.clone()
        for image, hidden in zip(found, blank.flatten(1), strict=True):  # (C, H, H), (H H,)
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


def fitted_gaussian(images: Tensor, components: int) -> Fill:
    """Return the mean of each image, given its visible pixels, of a Gaussian of few directions and one variance in all
    others (probabilistic principal components) that is fitted to images (N, D) by maximum likelihood.
    """
    mean = images.mean(0)  # (D,)
    _, values, vectors = torch.linalg.svd(images - mean, full_matrices=False)
    variances = values.square() / len(images)  # (min(N, D),)
    left = images.shape[1] - components
    noise = max(float(variances[components:].sum()) / left, float(variances[0]) * SMALLEST)
    lengths = (variances[:components] - noise).clamp(min=0).sqrt()
    directions = vectors[:components].T * lengths  # (D, K), each as long as its standard deviation beyond the noise

    def fill(masked: Tensor, blank: Tensor) -> Tensor:
        found = []
        for image, hidden in zip(masked.double(), blank.expand_as(masked), strict=True):
            seen = ~hidden.flatten()  # (D,)
            known = directions[seen]  # (seen, K)
            gram = known.T @ known + noise * torch.eye(known.shape[1], dtype=known.dtype)
            weights = torch.linalg.solve(gram, known.T @ (image.flatten()[seen] - mean[seen]))  # (K,)
            found.append((mean + directions @ weights).view_as(image))
        return torch.stack(found).to(masked.dtype)

    return fill


def gaussian(data: MaskedImageData) -> Fill:
    """Return the conditional mean of a Gaussian of the training images, given the visible pixels."""
    most_batches = max(HELD_OUT, MOST_FITTED // data.batch_size)
    batches = [data.train_batch(step) for step in range(min(NUM_BATCHES, most_batches))]
    kept = [images for step, (_, images) in enumerate(batches) if step % HELD_OUT]
    images = torch.cat(kept).flatten(1).double()  # (N, D)
    most = min(len(images), images.shape[1]) - 1

    def error(components: int) -> float:
        fill, total = fitted_gaussian(images, components), 0.0
        for masked, whole in batches[::HELD_OUT]:
            total += float((_completed(data, fill, masked) - whole).square().sum())
        return total

    best = min(dict.fromkeys(min(count, most) for count in COMPONENTS), key=error)
    everything = torch.cat([images for _, images in batches]).flatten(1).double()
    return fitted_gaussian(everything, best)


FILLS: dict[str, Callable[[MaskedImageData], Fill]] = {
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
    """

    kinds = (MaskedImageData,)

    def __init__(self, rule: str = "visible_mean") -> None:
        self.rule = one_of("rule", rule, FILLS)

    def measured(self, data: MaskedImageData) -> Findings:
        fill, found = FILLS[self.rule](data), Findings()
        for split in data.splits:
            errors = [
                (_completed(data, fill, masked) - images).square().flatten(1).mean(1)  # (B,)
                for masked, images in data.evaluation_batches(split)
            ]
            found.metrics[f"{split}_mse"] = float(torch.cat(errors).mean())
        masked, images = first_images(data, torch.device("cpu"))
        strips = strips_of(images, masked, _completed(data, fill, masked))
        return Findings(found.metrics | strips.metrics, strips.attachments)


def _completed(data: MaskedImageData, fill: Fill, masked: Tensor) -> Tensor:
    blank = data.blank(masked)  # (B, 1, H, H)
    return torch.where(blank, fill(masked, blank), masked)


# Denoising.


def wiener(pairs: Sequence[tuple[Tensor, Tensor]], time: int) -> Denoise:
    """Fit one linear filter of a window around each pixel of a channel, with a constant, by least squares.

    Of stationary images it is the Wiener filter of that reach.  Beyond its border an image is mirrored.
    """
    parts = [(_windows(noised).flatten(0, 1), images.double().flatten()) for images, noised in pairs]
    gram = sum((windows.T @ windows for windows, _ in parts), torch.zeros(()))  # (F + 1, F + 1)
    right = sum((windows.T @ numbers for windows, numbers in parts), torch.zeros(()))  # (F + 1,)
    gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights = torch.linalg.solve(gram, right)  # (F + 1,)
    return lambda noised: (_windows(noised) @ weights).view_as(noised).to(noised.dtype)


def _windows(images: Tensor) -> Tensor:
    """Return the pixels around each pixel, and a one, (B C, H H, F + 1), of images (B, C, H, H)."""
    planes = F.pad(images.double().flatten(0, 1)[:, None], [REACH] * 4, mode="reflect")  # (B C, 1, ., .)
    windows = F.unfold(planes, 2 * REACH + 1).mT  # (B C, H H, F)
    return torch.cat([windows, torch.ones_like(windows[..., :1])], -1)


def total_variation(pairs: Sequence[tuple[Tensor, Tensor]], time: int) -> Denoise:
    """Choose the weight of total variation, all channels together (Chambolle), that has the least error on training
    images; images are first divided by the share of their signal that is left.
    """
    signal = diffusion.signal(time)

    def error(weight: float) -> float:
        return sum(float((_smoothed(noised / signal, weight) - images).square().sum()) for images, noised in pairs)

    best = min(WEIGHTS, key=error)
    return lambda noised: _smoothed(noised / signal, best)


def _smoothed(images: Tensor, weight: float) -> Tensor:
    try:
        from skimage.restoration import denoise_tv_chambolle
    except ImportError as error:
        raise UsageError("total variation needs scikit-image: run: pip install scikit-image") from error
    found = [denoise_tv_chambolle(image.double().numpy(), weight, channel_axis=0) for image in images]
    return torch.stack([torch.from_numpy(image) for image in found]).to(images.dtype)


DENOISERS: dict[str, Callable[[Sequence[tuple[Tensor, Tensor]], int], Denoise]] = {
    "noised": lambda pairs, time: lambda noised: noised,
    "wiener": wiener,
    "total_variation": total_variation,
}


class DenoisingFloor(FloorTask):
    """Measures a rule that needs no network, under the names of a trained model's metrics.

    It is fitted to training images at each level by itself, so it knows the noise of each, which the models do not.
    Metrics: ``<level>_psnr``, ``<level>_image_psnr`` and ``<level>_mse``; strips of images: ``<level>_found.png``; see
    ``Denoising``.

    Args:
        rule: "noised", "wiener" or "total_variation".
    """

    kinds = (ImageData,)

    def __init__(self, rule: str = "noised") -> None:
        self.rule = one_of("rule", rule, DENOISERS)

    def measured(self, data: ImageData) -> Findings:
        data, found = plain_images(data), Findings()
        for level, time in LEVELS.items():
            pairs: list[tuple[Tensor, Tensor]] = []
            for pair in noised_batches(data, time, TRAIN):
                pairs.append(pair)
                if sum(len(images) for images, _ in pairs) >= NUM_FILTERED:
                    break
            denoise, errors = DENOISERS[self.rule](pairs, time), new_errors()
            for index, (images, noised) in enumerate(noised_batches(data, time)):
                denoised = denoise(noised)
                update_errors(errors, denoised, images)
                if not index:
                    found.attachments[f"{level}_found.png"] = png(denoised[:NUM_SHOWN])
            found.metrics |= {f"{level}_{kind}": value for kind, value in computed_errors(errors).items()}
        return found
