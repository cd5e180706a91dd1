"""Encoded images to pixels, in this process or in others, which need nothing of torch for it.

An image is turned into RGB only where no value changes by that.  It is taken as it is stored: an orientation that a
camera noted beside it is not applied, as in ADM and DiT.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paper_repro.datamodules.encoded_files import UnfitError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""What is decoded; Pillow's other decoders, some of which start programs, are not asked."""
MOST_PIXELS = 2**26
"""Pixels of the largest image that is decoded; ImageNet's largest has 61 million."""
EXACT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's modes whose opaque images have an RGB image with the same colours."""
GREY = ("1", "L", "LA")
OPAQUE = 255
DEEP = ";16"
"""The mark of 16 bits in the name that Pillow's decoders have for what they read."""


def decode(content: bytes, size: tuple[int, int] | None = None) -> Pixels:
    """Return the pixels, (height, width, 3), of an encoded RGB image of ``size``, (width, height); None: of any.

    Raises:
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

    Args:
        size: the side of the square.
    """

    size: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.size, self.size, 3)

    @property
    def settings(self) -> dict[str, Any]:
        """All that the pixels depend on, beside the image."""
        return {"size": self.size, "crop": "central square, halved by box filter, then bicubic"}

    def __call__(self, content: bytes) -> tuple[Pixels, bool]:
        """Return the square of an encoded image, (size, size, 3), and whether the image is grey.

        Raises:
            UnfitError: it is damaged, too large or too narrow, or has no RGB image of the same colours.
        """
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


def _rgb(image: "Image") -> tuple["Image", bool]:
    """Return an image in RGB, and whether it is grey.

    Raises:
        UnfitError: RGB of 8 bits would change its colours, or it moves.
    """
    mode, stored = image.mode, _stored_mode(image)
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


def _stored_mode(image: "Image") -> str:
    """Return Pillow's name for what the file holds, before it is decoded; empty where its decoder has none."""
    tiles = getattr(image, "tile", None)
    arguments = tiles[0].args if tiles else ""
    first = arguments[0] if isinstance(arguments, tuple) else arguments
    return first if isinstance(first, str) else ""


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
