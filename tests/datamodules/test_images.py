import importlib.util
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.image_sources import Digits, Faces, Photographs
from paper_repro.datamodules.images import ImageData, MaskedImageData
from paper_repro.datamodules.pixels import (
    UnfitError,
    aligned_square,
    central_square,
    random_box,
    random_resized_crop,
)


def test_exactly_half_of_the_cells_are_blank_and_the_rest_is_as_it_was() -> None:
    data = MaskedImageData(Photographs(120, 1), batch_size=8)
    masked, images = data.train_batch(0)
    assert masked.shape == images.shape == (8, 3, 120, 120) and masked.dtype == images.dtype == torch.float32
    assert masked.is_contiguous() and images.is_contiguous()
    blank = data.blank(masked)
    assert blank.shape == (8, 1, 120, 120) and blank[..., ::20, ::20].sum((1, 2, 3)).tolist() == [18] * 8
    assert torch.equal(masked, images.masked_fill(blank, 0.0)) and blank.sum((1, 2, 3)).tolist() == [18 * 400] * 8


def test_every_square_of_a_photograph_is_an_image() -> None:
    source = Photographs(24, 1)
    parts = source.photographs["test"]
    places = [(part.shape[0] - 23) * (part.shape[1] - 23) for part in parts]
    assert source.counts["test"] == sum(places)
    across = parts[0].shape[1] - 23
    corners = {0: (0, 0, 0), across - 1: (0, 0, across - 1), across: (0, 1, 0), places[0]: (1, 0, 0)}
    for index, (part, top, left) in corners.items():
        assert np.array_equal(source.image("test", index), parts[part][top : top + 24, left : left + 24])
    assert np.array_equal(source.image("test", sum(places) - 1), parts[-1][-24:, -24:])
    with pytest.raises(IndexError, match=f"split 'test' has {sum(places)} images, got index {sum(places)}"):
        source.image("test", sum(places))


def test_digits_fill_the_range_and_bring_labels_where_asked() -> None:
    data = ImageData(Digits(), batch_size=6, labelled=True)
    images, labels = data.train_batch(2)
    assert images.shape == (6, 1, 8, 8) and labels.dtype == torch.int64
    assert torch.equal(ImageData(Digits(), batch_size=6).train_batch(2), images)
    for split, count in (("train", 1_438), ("test", 359)):
        images, labels = (torch.cat(parts) for parts in zip(*data.evaluation_batches(split), strict=True))
        assert len(images) == data.source.counts[split] == count and set(labels.tolist()) == set(range(10))
        assert (float(images.min()), float(images.max())) == (-1.0, 1.0)
        assert torch.equal(images * 8, (images * 8).round()), "steps of 1/8: 0 to 16"


def test_a_crop_sees_nothing_beyond_its_border() -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    draws = [(0.5, 0.5, 0.5, 0.5)]
    top, left, height, width = random_box(40, 40, (0.5, 0.5), (1, 1), draws)
    assert (top, left, height, width) == (6, 6, 28, 28)
    pixels[top : top + height, left : left + width] = 200
    assert (random_resized_crop(pixels, 20, (0.5, 0.5), (1, 1), draws) == 200).all()


def test_areas_ratios_and_places_are_distributed_as_they_should_be() -> None:
    draws = np.random.default_rng(0).random((4_000, 10, 4))
    boxes = np.array([random_box(1000, 1000, (0.1, 0.3), (3 / 4, 4 / 3), some) for some in draws.tolist()])
    top, left, height, width = boxes.T
    # All fit at the first try, so each of these is uniform in [0, 1]: its mean within 5 standard errors of a half.
    uniform = {
        "area": (height * width / 1e6 - 0.1) / 0.2,
        "log ratio": np.log(width / height) / (2 * math.log(4 / 3)) + 0.5,
        "top": top / (1000 - height),
        "left": left / (1000 - width),
    }
    for name, values in uniform.items():
        assert abs(values.mean() - 0.5) < 5 / math.sqrt(12 * 4_000), name
        assert values.min() < 0.01 and values.max() > 0.99 and abs(values.std() - 12**-0.5) < 0.01, name
    # Drawn independently: correlations have a standard error of 1 / sqrt(4000).
    correlations = np.corrcoef(list(uniform.values()))
    assert np.abs(correlations - np.eye(4)).max() < 5 / math.sqrt(4_000)


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [(100, 100, (0, 0, 100, 100)), (100, 400, (0, 133, 100, 133)), (400, 100, (133, 0, 133, 100))],
)
def test_where_no_try_fits_the_largest_central_crop_is_taken(height: int, width: int, box: tuple[int, ...]) -> None:
    draws = [(1.0, 1.0 if width <= height else 0.0, 0.0, 0.0)] * 10
    assert random_box(height, width, (1.0, 1.0), (3 / 4, 4 / 3), draws) == box


def test_stand_ins_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for source, package in ((Photographs(), "scikit-image"), (Faces(), "scikit-image"), (Digits(), "scikit-learn")):
        with pytest.raises(UsageError, match=f"which {package} ships: run: pip install {package}"):
            MaskedImageData(source, cell=2).prepare_data()


def test_photographs_are_for_training_or_for_testing_and_shrunk_by_means() -> None:
    source = Photographs(size=16, shrink=4)
    (folder,) = importlib.util.find_spec("skimage").submodule_search_locations  # type: ignore[union-attr]
    whole = np.asarray(Image.open(f"{folder}/data/astronaut.png")).astype(float)
    first = source.photographs["test"][0]
    assert first.shape == (128, 128, 3) and len(source.photographs["train"]) == 7
    assert np.abs(first[2, 3] - whole[8:12, 12:16].mean((0, 1))).max() <= 0.5
    image = source.image("train", 5)
    assert np.array_equal(source.augmented(5, [[0.9] * 4]), image)
    assert np.array_equal(source.augmented(5, [[0.1] * 4]), image[:, ::-1])
    with pytest.raises(UsageError, match=r"data\.source\.size=300: the photographs hold"):
        _ = Photographs(300, shrink=4).counts


def test_faces_are_cut_at_random_and_evaluated_at_the_centre() -> None:
    source = Faces(23)
    assert source.counts == {"train": 80, "test": 20}
    whole = source.whole["train"][3]
    assert whole.shape == (25, 25, 1) and whole.max() > 200
    assert np.array_equal(source.image("train", 3), whole[1:24, 1:24])
    assert np.array_equal(source.augmented(3, [[0.9, 0.99, 0.0, 0.0]]), whole[2:25, 0:23])
    assert np.array_equal(source.augmented(3, [[0.1, 0.99, 0.0, 0.0]]), whole[2:25, 0:23][:, ::-1])
    assert ImageData(source, batch_size=5).train_batch(0).shape == (5, 1, 23, 23)


SIZE = 16


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def photograph(width: int, height: int) -> Image.Image:
    return Image.fromarray(Photographs(120, 1).photographs["train"][1][:height, :width])


@pytest.mark.parametrize(
    ("width", "height", "halved", "resized"),
    [
        (300, 200, [(150, 100), (75, 50), (37, 25)], (24, 16)),
        (64, 64, [(32, 32), (16, 16)], (16, 16)),
        (9, 12, [], (16, 21)),
    ],
)
def test_the_central_square_is_halved_then_resized_then_cropped(width, height, halved, resized):
    image = photograph(width, height)
    pixels = central_square(encoded(image), SIZE)
    for size in halved:
        image = image.resize(size, Image.Resampling.BOX)
    image = image.resize(resized, Image.Resampling.BICUBIC)
    left, top = (resized[0] - SIZE) // 2, (resized[1] - SIZE) // 2
    assert np.array_equal(pixels, np.asarray(image.crop((left, top, left + SIZE, top + SIZE))))


@pytest.mark.parametrize(("mode", "form"), [("L", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("RGBA", "WEBP")])
def test_images_of_other_modes_become_rgb(mode: str, form: str) -> None:
    content = encoded(photograph(SIZE, SIZE).convert(mode), form)
    assert np.array_equal(central_square(content, SIZE), np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))


def test_what_cannot_be_read_is_named() -> None:
    for content in (encoded(NOISE, "JPEG")[:-200], b"no image", encoded(NOISE, "PPM")):
        with pytest.raises(UnfitError, match="bytes that are no whole image") as caught:
            central_square(content, SIZE)
        assert "\n" not in str(caught.value)
    with pytest.raises(UnfitError, match="178x178 pixels, expected 178x218"):
        aligned_square(encoded(Image.new("RGB", (178, 178))))
