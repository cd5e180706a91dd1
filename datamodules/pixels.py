"""Pixels of images: resized, cropped at random; and images that installed packages bring along."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paper_repro.base.errors import UsageError, positive
from paper_repro.datamodules.image_decoding import Pixels


def resized(pixels: Pixels, size: int) -> Pixels:
    """Return the image at ``size`` x ``size``: bilinear with antialiasing, as torchvision's Resize of a PIL image."""
    from PIL import Image

    if pixels.shape[:2] == (size, size):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


def shrunk(pixels: Pixels, factor: int) -> Pixels:
    """Return an image (height, width, C) so many times smaller, each pixel the mean of a square; what is left over at
    the right and below is cut off.
    """
    height, width = (side // factor for side in pixels.shape[:2])
    squares = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    return np.rint(squares.mean((1, 3), dtype=np.float64)).astype(np.uint8)


def random_box(
    height: int,
    width: int,
    scale: Sequence[float],
    ratio: Sequence[float],
    draws: Sequence[Sequence[float]],
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of a crop, distributed as that of torchvision's RandomResizedCrop.

    Its area is uniform in ``scale`` times the image's and the logarithm of width over height uniform in those of
    ``ratio``; the first of the tries that fits is placed uniformly.  If none fits it is the largest central crop whose
    ratio is allowed.  ``draws`` are four numbers, uniform in [0, 1), for each try: area, ratio, top, left.
    """
    low, high = (math.log(end) for end in ratio)
    for one, two, three, four in draws:
        area = height * width * (scale[0] + one * (scale[1] - scale[0]))
        aspect = math.exp(low + two * (high - low))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            return int(three * (height - down + 1)), int(four * (width - across + 1)), down, across
    across, down = width, height
    if width < height * ratio[0]:
        down = round(width / ratio[0])
    elif width > height * ratio[1]:
        across = round(height * ratio[1])
    return (height - down) // 2, (width - across) // 2, down, across


def random_resized_crop(
    pixels: Pixels, size: int, scale: Sequence[float], ratio: Sequence[float], draws: Sequence[Sequence[float]]
) -> Pixels:
    """Return a random crop of an image (height, width, C) at ``size`` x ``size``; arguments as of ``random_box``.

    Cropped first: resized from a box within the whole image, the crop's border would mix in what lies beyond it.
    """
    top, left, height, width = random_box(pixels.shape[0], pixels.shape[1], scale, ratio, draws)
    return resized(pixels[top : top + height, left : left + width], size)


def interval(name: str, value: Sequence[float], most: float = math.inf) -> tuple[float, float]:
    """Return two positive numbers, the lower first, at most ``most``.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers, the lower first, got {value!r}")
    low, high = (positive(name, end) for end in value)
    if not low <= high <= most:
        limit = f", at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name} must be two numbers, the lower first{limit}, got {value!r}")
    return low, high


def packaged(package: str, name: str, install: str) -> bytes:
    """Return a data file that an installed package brings along; the package is found without importing it.

    Args:
        install: the name under which it is installed.

    Raises:
        UsageError: the package or the file is not there.
    """
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found else []
    path = Path(places[0]) / name if places else None
    if path is None or not path.is_file():
        raise UsageError(f"needs {name}, which {install} ships: run: pip install {install}")
    return path.read_bytes()
