import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.datamodules import media_preparation
from paper_repro.datamodules.image_sources import Photographs
from paper_repro.datamodules.images import CelebAData
from paper_repro.datamodules.pixels import random_resized_crop
from paper_repro.scripts import prepare_data

SPLITS = {"train": 7, "val": 2, "test": 3}
NAMES = {
    "train": [f"{number:06d}.jpg" for number in range(1, 8)],
    "val": ["000008.jpg", "000009.jpg"],
    "test": ["000010.jpg", "000011.jpg", "000012.jpg"],
}


@pytest.fixture(scope="module")
def photographs() -> dict[str, bytes]:
    """Twelve JPEGs of CelebA's size, by name."""
    whole = Photographs(120, 1).photographs["train"][1:]
    content = {}
    for index, name in enumerate(sorted(name for names in NAMES.values() for name in names)):
        pixels = whole[index % 2][10 * index : 10 * index + 218, 20 * index : 20 * index + 178]
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=90)
        content[name] = stream.getvalue()
    return content


@pytest.fixture
def celeba(photographs: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CelebA's images in a folder for each split, in small; files of pixels hold three images each."""
    monkeypatch.setattr(media_preparation, "SHARD_FACES", 3)
    for split, names in NAMES.items():
        (tmp_path / "celeba" / split).mkdir(parents=True)
        for name in names:
            (tmp_path / "celeba" / split / name).write_bytes(photographs[name])
    return tmp_path / "celeba"


def prepare(folder: Path, to: str = "out", *words: str) -> Path:
    out = folder.parent / to
    assert prepare_data.main(["celeba", "--from", str(folder), "--to", str(out), *words]) == 0
    return out


def opened(out: Path, **settings: Any) -> CelebAData:
    given = {"batch_size": 4, "data_root": out, **settings}
    return CelebAData(files={"manifest": "celeba/manifest.json"}, **given)


def test_every_image_is_the_central_square_of_its_jpeg(
    celeba: Path, photographs: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    out = prepare(celeba)
    assert "train: 7 images\nval: 2 images\ntest: 3 images\n" in capsys.readouterr().out
    data = opened(out)
    assert data.source.counts == SPLITS and data.splits == ("train", "val", "test")
    for split, names in NAMES.items():
        for index, name in enumerate(names):
            square = Image.open(io.BytesIO(photographs[name])).crop((0, 20, 178, 198))
            assert np.array_equal(data.source.stored[split].item("images", index), np.asarray(square))
            small = square.resize((120, 120), Image.Resampling.BILINEAR)
            assert np.array_equal(data.source.image(split, index), np.asarray(small))
    assert prepare_data.main(["celeba", "--verify", "--to", str(out)]) == 0
    files = ["test-00000.bin", *(f"train-0000{index}.bin" for index in range(3)), "val-00000.bin"]
    assert sorted(path.name for path in (out / "celeba").glob("*.bin")) == files


def test_training_sees_random_crops_and_evaluation_none(celeba: Path) -> None:
    data = opened(prepare(celeba), ratio=(0.5, 2.0))
    draws = [[0.1, 0.52, 0.3, 0.9]]
    crop = random_resized_crop(data.source.stored["train"].item("images", 2), 120, (0.9, 1.0), (0.5, 2.0), draws)
    assert np.array_equal(data.source.augmented(2, draws), crop)
    assert not np.array_equal(crop, data.source.image("train", 2))
    evaluated = torch.cat([batch[1] for batch in data.evaluation_batches("train")])
    trained = torch.cat([data.train_batch(step)[1] for step in range(3)])
    assert len(evaluated) == 7 and not all(any(torch.equal(one, other) for other in evaluated) for one in trained)
