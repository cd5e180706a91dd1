import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from paper_repro.datamodules.image_sources import Photographs
from paper_repro.datamodules.pixels import CentralSquare, UnfitError

SIZE = 16
CROP = CentralSquare(SIZE)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def photograph(width: int, height: int) -> Image.Image:
    return Image.fromarray(Photographs(120, 1).photographs["train"][1][:height, :width])


def png(width: int, height: int, depth: int, kind: int, row: bytes, rows: int | None = None) -> bytes:
    """A PNG that Pillow does not write; with fewer ``rows`` it is a promise of more pixels than it holds."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    pixels = zlib.compress((b"\0" + row) * (height if rows is None else rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height", "halved", "resized"),
    [
        (300, 200, [(150, 100), (75, 50), (37, 25)], (24, 16)),
        (64, 64, [(32, 32), (16, 16)], (16, 16)),
        (9, 12, [], (16, 21)),
    ],
)
def test_the_central_square_is_halved_then_resized_then_cropped(
    width: int, height: int, halved: list[tuple[int, int]], resized: tuple[int, int]
) -> None:
    image = photograph(width, height)
    pixels, grey = CROP(encoded(image))
    for size in halved:
        image = image.resize(size, Image.Resampling.BOX)
    image = image.resize(resized, Image.Resampling.BICUBIC)
    left, top = (resized[0] - SIZE) // 2, (resized[1] - SIZE) // 2
    assert np.array_equal(pixels, np.asarray(image.crop((left, top, left + SIZE, top + SIZE)))) and not grey
    assert pixels.shape == (SIZE, SIZE, 3)


def test_what_has_an_rgb_image_of_the_same_colours_becomes_that() -> None:
    image = photograph(SIZE, SIZE)
    pixels = np.asarray(image)
    opaque = image.copy()
    opaque.putalpha(255)
    palette = image.quantize(64)
    colours = np.asarray(palette.getpalette(), np.uint8).reshape(-1, 3)[np.asarray(palette)]
    for content, expected in (
        (encoded(opaque), pixels),
        (encoded(opaque, "WEBP", lossless=True), pixels),
        (encoded(image, "TIFF"), pixels),
        (encoded(image, "BMP"), pixels),
        (encoded(palette), colours),
        (encoded(palette, "GIF"), colours),
    ):
        found, grey = CROP(content)
        assert np.array_equal(found, expected) and not grey
    grey_image = image.convert("L")
    for one in (grey_image, Image.merge("LA", (grey_image, Image.new("L", image.size, 255)))):
        found, grey = CROP(encoded(one))
        assert np.array_equal(found, np.repeat(np.asarray(grey_image)[..., None], 3, axis=2)) and grey


TRANSPARENT = Image.new("RGBA", (20, 20), (1, 2, 3, 254))
FRAMES = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encoded(TRANSPARENT), "mode RGBA, partly transparent, expected opaque"),
        (png(20, 20, 16, 2, b"\x12\x34" * 60), "mode RGB;16B, 16 bits each, expected 8"),
        (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "several frames, expected one image"),
        (encoded(NOISE, "JPEG")[:-200], r"no whole image \(image file is truncated"),
        (png(9_000, 9_000, 8, 2, b"", 0), "9000x9000 pixels, expected at most 67,108,864 in all"),
        (encoded(Image.new("RGB", (1, 500_000))), "16x8000000 pixels, expected at most"),
    ],
)
def test_what_would_change_or_cannot_be_read_is_named(content: bytes, message: str) -> None:
    with pytest.raises(UnfitError, match=message) as caught:
        CROP(content)
    assert "\n" not in str(caught.value)
