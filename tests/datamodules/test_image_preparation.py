import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
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
from paper_repro.datamodules.images import ImageData
from paper_repro.datamodules.media_preparation import Named
from paper_repro.datamodules.pixels import CentralSquare
from paper_repro.datamodules.prepared_images import PreparedImages, StoredImages
from paper_repro.scripts import prepare_data
from paper_repro.tests.support.prepared import content, refusal

SIZE = 8
CLASSES = ("n01", "n02", "n03")
COUNTS = {"train": 7, "val": 4}
SPLITS = ("train", "val")


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


def test_coco_is_prepared_in_the_order_of_its_names(
    coco: Path, jpegs: dict[str, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prepare("coco", coco)
    assert "train: 7 images\nval: 4 images\n" in capsys.readouterr().out
    stored = StoredImages(folder / "manifest.json", SPLITS, shape=(SIZE, SIZE, 3))
    assert stored.counts == COUNTS and stored.shape == (SIZE, SIZE, 3) and stored.classes is None
    for split, images in jpegs.items():
        for index, one in enumerate(images):
            assert np.array_equal(stored.image(split, index), CentralSquare(SIZE)(one)[0])
    with pytest.raises(UsageError, match="images of 8 x 8 x 3, expected 178 x 178 x 3"):
        StoredImages(folder / "manifest.json", SPLITS, shape=(178, 178, 3))
    with pytest.raises(UsageError, match="there is no such manifest of images"):
        StoredImages(folder / "other.json", SPLITS)
    with pytest.raises(ValueError, match="these images have no labels"):
        stored.label("train", 0)
    names = ["train-00000.bin", "train-00001.bin", "train-00002.bin", "val-00000.bin", "val-00001.bin"]
    assert sorted(path.name for path in folder.glob("*.bin")) == names
    assert prepare_data.main(["coco", "--verify", "--to", str(folder.parent), "--size", str(SIZE)]) == 0
    assert content(folder) == content(prepare("coco", coco, "again"))


def test_an_image_has_the_class_of_its_folder(imagenet: Path, jpegs: dict[str, list[bytes]]) -> None:
    stored = StoredImages(prepare("imagenet", imagenet) / "manifest.json", SPLITS)
    assert stored.counts == COUNTS and stored.classes == 3
    for split, images in jpegs.items():
        for index, one in enumerate(images):
            assert np.array_equal(stored.image(split, index), CentralSquare(SIZE)(one)[0])
            assert stored.label(split, index) == label_of(split, index)


def rows(jpegs: dict[str, list[bytes]], label: Any, **labels: list[Any]) -> Any:
    """The same images as a dict of data sets."""
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": label})
    found = datasets.DatasetDict()
    for split, images in jpegs.items():
        own = labels.get(split, [label_of(split, index) for index in range(COUNTS[split])])
        encoded = [{"bytes": one, "path": None} for one in images]
        found["validation" if split == "val" else split] = datasets.Dataset.from_dict(
            {"image": encoded, "label": own}, features
        )
    return found


def test_parquet_files_and_the_hub_give_the_same_images_and_labels(
    imagenet: Path, jpegs: dict[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import huggingface_hub

    expected = content(prepare("imagenet", imagenet))
    named, numbered = rows(jpegs, datasets.ClassLabel(names=list(CLASSES))), rows(jpegs, datasets.Value("int64"))
    for split, some in named.items():
        some.to_parquet(str(imagenet.parent / "parquet" / "data" / f"{split}-0.parquet"))
    found = [content(prepare("imagenet", imagenet.parent / "parquet", "other"))]
    asked = []

    def hub(name: str, revision: str | None) -> Any:
        asked.append((name, revision))
        return named if len(asked) == 1 else numbered

    monkeypatch.setattr(datasets, "load_dataset", hub)
    now = {"ILSVRC/imagenet-1k": "1ab", "AbdoTW/COCO_2014": "c0c0"}
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda _, name: SimpleNamespace(sha=now[name]))
    for words in ((), ("--hub", "a/copy@c0ffee")):
        out = imagenet.parent / f"hub{len(words)}"
        assert prepare_data.main(["imagenet", "--download", "--size", str(SIZE), "--to", str(out), *words]) == 0
        found.append(content(out / f"imagenet-{SIZE}"))
    assert prepare_data.main(["coco", "--download", "--size", str(SIZE), "--to", str(imagenet.parent / "coco")]) == 0
    assert asked == [("ILSVRC/imagenet-1k", "1ab"), ("a/copy", "c0ffee"), ("AbdoTW/COCO_2014", "c0c0")]
    noted = json.loads((imagenet.parent / "coco" / f"coco-{SIZE}" / "manifest.json").read_text())
    assert (noted["from"], noted["revision"]) == ("AbdoTW/COCO_2014", "c0c0")
    now["AbdoTW/COCO_2014"] = "c0c1"
    words = ["coco", "--download", "--size", str(SIZE), "--to", str(imagenet.parent / "coco")]
    assert 'was prepared with revision "c0c0", asked for is "c0c1"' in refusal(*words)
    assert prepare_data.main([*words, "--hub", "AbdoTW/COCO_2014@c0c0"]) == 0
    for some in (expected, *found):
        settings = json.loads(some.pop("manifest.json"))
        assert settings["classes"] == 3 and list(settings["arrays"]) == ["images", "labels"]
    assert found == [expected] * 3


def test_wrong_labels_are_named(jpegs: dict[str, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_: SimpleNamespace(sha="c0ffee"))

    def message(to: str, label: Any, **labels: list[Any]) -> str:
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows(jpegs, label, **labels))
        return refusal("imagenet", "--download", "--size", str(SIZE), "--to", str(tmp_path / to))

    number = datasets.Value("int64")
    assert "1 of 11 images are unfit: val 1: label -1, expected 0 to 2" in message("below", number, val=[0, -1, 2, 1])
    assert "val 0: label None" in message("none", number, val=[None, 1, 2, 1])
    assert "column 'label' holds" in message("text", datasets.Value("string"), train=["a"] * 7, val=["a"] * 4)
    assert "expected whole numbers from 0" in message("withheld", number, train=[-1] * 7)
    assert "expected whole numbers from 0" in message("empty", number, train=[None] * 7)
    no_label = {split: some.remove_columns("label") for split, some in rows(jpegs, number).items()}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: no_label)
    found = refusal("imagenet", "--download", "--to", str(tmp_path / "out"))
    assert "expected a split train with a column 'label', found train: image; validation: image" in found


def test_unfit_images_are_refused_or_left_out_with_their_labels(imagenet: Path, jpegs: dict[str, list[bytes]]) -> None:
    undisturbed = content(prepare("imagenet", imagenet))
    train = imagenet / "train"
    (train / "n01" / "0.JPEG").unlink()
    (train / "n01" / "0.JPEG").symlink_to("/dev/zero")
    (train / "n02" / "3.JPEG").write_bytes(jpegs["train"][3][:-150])
    Image.fromarray(np.full((9, 9), 7, np.uint8)).save(imagenet / "val" / "n01" / "0.JPEG")
    out = imagenet.parent / "new"
    found = refusal("imagenet", "--from", str(imagenet), "--to", str(out), "--size", str(SIZE))
    assert "2 of 11 images are unfit: train/n01/0.JPEG: a folder, device or pipe" in found
    assert not (out / f"imagenet-{SIZE}" / "manifest.json").exists()

    folder = prepare("imagenet", imagenet, "new", "--on-corrupt", "skip")
    stored = StoredImages(folder / "manifest.json", SPLITS)
    assert stored.counts == {"train": 5, "val": 4}
    kept = [1, 2, 4, 5, 6]
    assert [stored.label("train", index) for index in range(5)] == [label_of("train", index) for index in kept]
    assert np.array_equal(stored.image("train", 2), CentralSquare(SIZE)(jpegs["train"][4])[0])
    assert (stored.image("val", 0) == 7).all() and stored.manifest.totals()["val"] == {"images": 4, "grey": 1}
    assert set(stored.manifest.skipped) == {"train/n01/0.JPEG", "train/n02/3.JPEG"}
    assert str(imagenet) not in str(stored.manifest.skipped)

    (train / "n01" / "0.JPEG").unlink()
    for name, split, index in (
        ("n01/0", "train", 0),
        ("n02/3", "train", 3),
        ("n01/0", "val", 0),
    ):
        (imagenet / split / f"{name}.JPEG").write_bytes(jpegs[split][index])
    (folder / "val-00000.bin").unlink()  # nothing was left out of it
    assert content(prepare("imagenet", imagenet, "new", "--on-corrupt", "skip")) == undisturbed


def test_the_bytes_do_not_depend_on_the_number_of_workers(imagenet: Path) -> None:
    (imagenet / "train" / "n02" / "3.JPEG").write_bytes(b"damaged")
    skip = ("--on-corrupt", "skip")
    alone = content(prepare("imagenet", imagenet, "alone", *skip))
    assert content(prepare("imagenet", imagenet, "three", *skip, "--workers", "3")) == alone
    assert "train/n02/3.JPEG" in alone["manifest.json"].decode()


def test_a_worker_that_was_killed_is_told(imagenet: Path, tmp_path: Path) -> None:
    def read(split: str, place: int) -> Named:
        if place == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return source.read(split, place)

    source = media_preparation.load_images("imagenet", imagenet)
    killed = replace(source, read=read)
    with pytest.raises(UsageError, match=r"ended from outside, .* with fewer --workers"):
        media_preparation.write_images(tmp_path / "out", killed, CentralSquare(SIZE), workers=2, say=lambda _: None)
    assert len(list((tmp_path / "out").glob("*.bin"))) == 1


KILLED = """
import sys, time
from dataclasses import replace
from pathlib import Path
from paper_repro.datamodules import media_preparation
from paper_repro.datamodules.pixels import CentralSquare
source = media_preparation.load_images("imagenet", Path(sys.argv[1]))
def slow(split, place):
    time.sleep(0.1)
    return source.read(split, place)
slowly = replace(source, read=slow)
media_preparation.write_images(Path(sys.argv[2]), slowly, CentralSquare(8), shard_images=3, workers=int(sys.argv[3]))
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


def test_damaged_shards_are_found_and_made_again(imagenet: Path) -> None:
    folder = prepare("imagenet", imagenet)
    before = content(folder)
    words = ["imagenet", "--verify", "--to", str(folder.parent), "--size", str(SIZE)]
    path = folder / "train-00001.bin"
    for damage, message in (
        (before[path.name][:-4], "has 584 bytes, expected 588 for 3 items: it is truncated"),
        (before[path.name][::-1], "this shard is altered"),
    ):
        path.write_bytes(damage)
        found = refusal(*words)
        assert message in found and found.endswith("give the command without --verify to make it again")
        assert content(prepare("imagenet", imagenet)) == before
    assert "was prepared with size 8, asked for is 16" in refusal(
        "imagenet", "--from", str(imagenet), "--to", str(folder.parent), "--size", "16", "--folder", folder.name
    )


def test_wrong_folders_and_words_are_answered(coco: Path, imagenet: Path) -> None:
    assert "coco: give either --from DIR, or --download" in refusal("coco")
    assert "there is no such folder; --from takes a folder with" in refusal("coco", "--from", str(coco / "none"))
    assert "found neither, expected a folder with train2014/ and val2014/" in refusal(
        "coco", "--from", str(coco.parent)
    )
    (imagenet / "val").rename(imagenet.parent / "moved away")
    assert "found train, expected" in refusal("imagenet", "--from", str(imagenet))
    (imagenet / "val").mkdir()
    for one in CLASSES[:2]:
        (imagenet / "val" / one).mkdir()
    found = refusal("imagenet", "--from", str(imagenet))
    assert "2 folders of classes, expected the same 3" in found
    (imagenet / "val" / CLASSES[2]).mkdir()
    assert "no images in this folder" in refusal("imagenet", "--from", str(imagenet))
    assert "--on-corrupt drop: give refuse or skip" in refusal("coco", "--from", str(coco), "--on-corrupt", "drop")
    assert "--workers 0: give a whole number above 0" in refusal("coco", "--from", str(coco), "--workers", "0")
    (coco / "parquet").mkdir()
    (coco / "parquet" / "cut.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read" in refusal("coco", "--from", str(coco / "parquet"))


def test_prepared_images_are_read_in_batches_with_their_labels(imagenet: Path, tmp_path: Path) -> None:
    out = prepare("imagenet", imagenet)
    files = {"manifest": str(out.relative_to(tmp_path) / "manifest.json")}

    def data(**settings: Any) -> ImageData:
        source = PreparedImages(files, "prepare them", **{"size": SIZE, "num_classes": 3, **settings})
        return ImageData(source, batch_size=4, labelled=bool(source.num_classes), data_root=tmp_path)

    stored, own = StoredImages(out / "manifest.json", SPLITS), data()
    images, labels = next(iter(own.evaluation_batches("val")))
    assert images.shape == (4, 3, SIZE, SIZE) and own.splits == SPLITS
    expected = {(stored.label("val", index), stored.image("val", index).tobytes()) for index in range(4)}
    pixels = ((images + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    found = zip(labels.tolist(), (np.ascontiguousarray(image).tobytes() for image in pixels), strict=True)
    assert set(found) == expected
    assert data(num_classes=0).train_batch(0).shape == images.shape
    mirrored, plain = data(mirror=True).source, own.source
    assert np.array_equal(mirrored.augmented(2, [[0.1] * 4]), plain.augmented(2, [[0.1] * 4])[:, ::-1])
    for wrong, message in (({"num_classes": 4}, "images of 3 classes, expected 4"), ({"size": 9}, "expected 9 x 9")):
        with pytest.raises(UsageError, match=message):
            data(**wrong).prepare_data()
