import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.base.errors import UsageError
from paper_repro.datamodules import media_preparation
from paper_repro.datamodules.image_sources import Photographs
from paper_repro.datamodules.images import CelebAData, ImageData
from paper_repro.datamodules.pixels import central_square, random_resized_crop
from paper_repro.datamodules.prepared_images import PreparedImages
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import content, refusal

SIZE = 8
CLASSES = ("n01", "n02", "n03")
COUNTS = {"train": 7, "val": 4}


@pytest.fixture(scope="module")
def jpegs() -> dict[str, list[bytes]]:
    """Small JPEGs of several shapes, by split."""
    whole = Photographs(120, 1).photographs["train"][1:]
    found: dict[str, list[bytes]] = {split: [] for split in COUNTS}
    for index, split in enumerate(split for split, count in COUNTS.items() for _ in range(count)):
        stream = io.BytesIO()
        pixels = whole[index % 2][20 * index : 20 * index + 12 + 3 * index, 30 * index : 30 * index + 40 - index]
        Image.fromarray(pixels).save(stream, "JPEG", quality=90)
        found[split].append(stream.getvalue())
    return found


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards hold three images each."""
    monkeypatch.setattr(media_preparation, "SHARD_BYTES", 3 * SIZE * SIZE * 3 + 1)


@pytest.fixture
def coco(jpegs: dict[str, list[bytes]], tmp_path: Path) -> Path:
    """COCO's folders, in small."""
    for split, images in jpegs.items():
        folder = tmp_path / "images" / f"{split}2014"
        folder.mkdir(parents=True)
        (folder / "readme.txt").write_text("no image")
        for index, jpeg in enumerate(images):
            (folder / f"{index}.jpg").write_bytes(jpeg)
    return tmp_path / "images"


def label_of(split: str, index: int) -> int:
    """The class of an image: each has one at least."""
    return index * len(CLASSES) // COUNTS[split]


@pytest.fixture
def imagenet(jpegs: dict[str, list[bytes]], tmp_path: Path) -> Path:
    """ImageNet's folders of classes, in small."""
    for split, images in jpegs.items():
        for index, jpeg in enumerate(images):
            path = tmp_path / "classes" / split / CLASSES[label_of(split, index)] / f"{index}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg)
    return tmp_path / "classes"


def prepare(name: str, source: Path, to: str = "out", *words: str) -> Path:
    out = source.parent / to
    assert prepare_data.main([name, "--from", str(source), "--to", str(out), "--size", str(SIZE), *words]) == 0
    return out / f"{name}-{SIZE}"


def opened(folder: Path, **settings: Any) -> PreparedImages:
    source = PreparedImages({"manifest": "manifest.json"}, "prepare them", **{"size": SIZE, **settings})
    source.find(folder, None)
    return source


def test_images_are_prepared_in_the_order_of_their_names_with_any_number_of_workers(coco, jpegs, capsys):
    folder = prepare("coco", coco)
    assert "train: 7 images\nval: 4 images\n" in capsys.readouterr().out
    stored = opened(folder)
    assert stored.counts == COUNTS
    for split, images in jpegs.items():
        for index, one in enumerate(images):
            assert np.array_equal(stored.image(split, index), central_square(one, SIZE))
    assert prepare_data.main(["coco", "--verify", "--to", str(folder.parent), "--size", str(SIZE)]) == 0
    assert content(folder) == content(prepare("coco", coco, "again", "--workers", "2"))


def test_the_hub_gives_the_same_images_and_labels(imagenet, jpegs, monkeypatch):
    import datasets
    import huggingface_hub

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    hub = datasets.DatasetDict()
    for split, images in jpegs.items():
        labels = [label_of(split, index) for index in range(COUNTS[split])]
        hub["validation" if split == "val" else split] = datasets.Dataset.from_dict(
            {"image": [{"bytes": one, "path": None} for one in images], "label": labels}, features
        )
    expected = content(prepare("imagenet", imagenet))
    asked, newest = [], SimpleNamespace(sha="1ab")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **options: asked.append(options["revision"]) or hub)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_: newest)
    words = ["imagenet", "--download", "--size", str(SIZE), "--to", str(imagenet.parent / "hub")]
    assert prepare_data.main(words) == 0
    found = content(imagenet.parent / "hub" / f"imagenet-{SIZE}")
    newest.sha = "1ac"
    assert 'was prepared with revision "1ab", asked for is "1ac"' in refusal(*words)
    assert asked == ["1ab", "1ac"]
    for some in (expected, found):
        settings = json.loads(some.pop("manifest.json"))
        assert settings["classes"] == 3 and list(settings["arrays"]) == ["images", "labels"]
    assert found == expected
    hub["train"] = hub["train"].remove_columns("label")
    assert "the hub did not give it" in refusal(*words)


def test_a_damaged_image_is_refused_and_mended(imagenet: Path, jpegs: dict[str, list[bytes]]) -> None:
    undisturbed = content(prepare("imagenet", imagenet))
    damaged = imagenet / "train" / "n02" / "3.JPEG"
    words = ["imagenet", "--from", str(imagenet), "--to", str(imagenet.parent / "new"), "--size", str(SIZE)]
    damaged.write_bytes(jpegs["train"][3][:-150])
    found = refusal(*words)
    assert f"{damaged}: " in found and "no whole image" in found and "give the same command again" in found
    damaged.write_bytes(jpegs["train"][3])
    assert content(prepare("imagenet", imagenet, "new")) == undisturbed


KILLED = """
import sys, time
from dataclasses import replace
from functools import partial
from pathlib import Path
from paper_repro.datamodules import media_preparation
from paper_repro.datamodules.pixels import central_square
source = media_preparation.load_images("imagenet", Path(sys.argv[1]))
def slow(split, place):
    time.sleep(0.1)
    return source.read(split, place)
slowly, crop = replace(source, read=slow), partial(central_square, size=8)
media_preparation.SHARD_BYTES = 3 * 8 * 8 * 3
media_preparation.write_images(Path(sys.argv[2]), slowly, crop, 8, workers=int(sys.argv[3]))
"""


def test_a_preparation_that_was_killed_ends_in_the_same_bytes_and_leaves_no_worker(imagenet: Path) -> None:
    import psutil

    expected = content(prepare("imagenet", imagenet))
    folder = imagenet.parent / "killed"
    command = [sys.executable, "-c", KILLED, str(imagenet), str(folder)]
    process = subprocess.Popen([*command, "2"], stdout=subprocess.DEVNULL)
    deadline, workers = time.monotonic() + 300, []
    while not ((folder / "progress.json").exists() and len(workers) >= 2) and time.monotonic() < deadline:
        time.sleep(0.005)
        workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    noted = (folder / "progress.json").read_text()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.bin") if path.name in noted}
    assert kept and not (folder / "manifest.json").exists()
    subprocess.run([*command, "1"], check=True, stdout=subprocess.DEVNULL)
    assert content(folder) == expected
    assert all(path.stat().st_mtime_ns == changed for path, changed in kept.items()), "a shard was written again"


def test_wrong_folders_are_answered(coco: Path) -> None:
    assert "coco: give --from PATH, or --download" in refusal("coco")
    assert "there is no such folder" in refusal("coco", "--from", str(coco / "absent"))
    (coco / "val2014").rename(coco.parent / "moved away")
    assert "splits train, expected one called 'val'" in refusal("coco", "--from", str(coco))


def test_prepared_images_are_read_in_batches_with_their_labels(imagenet, jpegs, tmp_path):
    folder = prepare("imagenet", imagenet)
    data = ImageData(opened(folder, num_classes=3), batch_size=4, labelled=True, data_root=folder)
    source = data.source
    assert [source.label("train", index) for index in range(7)] == [label_of("train", index) for index in range(7)]
    assert np.array_equal(source.image("train", 6), central_square(jpegs["train"][6], SIZE))
    images, labels = next(iter(data.evaluation_batches("val")))
    assert images.shape == (4, 3, SIZE, SIZE) and data.splits == ("train", "val")
    expected = {(source.label("val", index), source.image("val", index).tobytes()) for index in range(4)}
    pixels = ((images + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    found = zip(labels.tolist(), (np.ascontiguousarray(image).tobytes() for image in pixels), strict=True)
    assert set(found) == expected
    assert ImageData(opened(folder), batch_size=4, data_root=folder).train_batch(0).shape == images.shape
    for wrong, message in (
        ({"num_classes": 4}, "images of 3 classes, expected 4"),
        ({"size": 9}, "expected images of 9 x 9"),
    ):
        with pytest.raises(UsageError, match=message):
            _ = opened(folder, **wrong).counts


def test_celebas_squares_are_resized_and_for_training_cropped_at_random(tmp_path: Path) -> None:
    whole = Photographs(120, 1).photographs["train"][1]
    squares: dict[str, list[np.ndarray]] = {}
    partition = tmp_path / "official" / "list_eval_partition.txt"
    (partition.parent / "img_align_celeba").mkdir(parents=True)
    lines = []
    for index, split in enumerate([*["train"] * 4, "val", "test"]):
        pixels = whole[10 * index : 10 * index + 218, 20 * index : 20 * index + 178]
        Image.fromarray(pixels).save(partition.parent / "img_align_celeba" / f"{index}.png")
        squares.setdefault(split, []).append(pixels[20:198])
        lines.append(f"{index}.png {['train', 'val', 'test'].index(split)}\n")
    words = ["celeba", "--from", str(partition.parent), "--to", str(tmp_path)]
    partition.write_text("".join([*lines, "6.png 3\n"]))
    assert f"{partition}: cannot be read" in refusal(*words)
    partition.write_text("".join(lines))
    assert prepare_data.main(words) == 0
    files = {"manifest": "celeba/manifest.json"}
    data = CelebAData(files=files, batch_size=4, ratio=(0.5, 2.0), data_root=tmp_path)
    assert data.splits == ("train", "val", "test")
    for split, own in squares.items():
        for index, square in enumerate(own):
            small = Image.fromarray(square).resize((120, 120), Image.Resampling.BILINEAR)
            assert np.array_equal(data.source.image(split, index), np.asarray(small))
    draws = [[0.1, 0.52, 0.3, 0.9]]
    crop = random_resized_crop(squares["train"][2], 120, (0.9, 1.0), (0.5, 2.0), draws)
    assert np.array_equal(data.source.augmented(2, draws), crop)
    evaluated = torch.cat([batch[1] for batch in data.evaluation_batches("train")])
    trained = data.train_batch(0)[1]
    assert len(evaluated) == 4 and not any(torch.equal(one, other) for one in trained for other in evaluated)
