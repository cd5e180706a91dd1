"""Encoded images and clips to shards: COCO, ImageNet and CelebA as pixels, Something-Something V2 as latents.

Images come from the hub, parquet files or folders of images, clips from folders.  Files are decoded by worker
processes; frames are encoded in this process by a frozen autoencoder.
Letters: F frames of a clip, H side of a frame, C channels and S side of a latent.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes, sha256_of_file
from paper_repro.datamodules.array_shards import M, Shard, ShardFolder, described, held, named
from paper_repro.datamodules.counter_based import leave_signals_to_the_parent
from paper_repro.datamodules.downloads import given
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.pixels import AlignedSquare, CentralSquare, Pixels, UnfitError, encoded
from paper_repro.datamodules.prepared_clips import CLIPS, LATENT, LATENTS, NUMBER, SECONDS, LatentManifest, arrays_of
from paper_repro.datamodules.prepared_images import CLASSES, GREY, IMAGES, LABEL, LABELS, ImageManifest, pixels_of
from paper_repro.datamodules.video_sources import Clip, decode_clip, import_av

T = TypeVar("T")
Named = tuple[str, Callable[[], bytes], int | None]
"""The name of a file, the function that reads it, which may raise OSError or UnfitError, and its class, if any."""
Stored = tuple[Sequence[bytes], Mapping[str, int]]
"""The bytes that a file adds to each array of a shard, and the numbers that it adds to the shard's counts."""


@dataclass(frozen=True)
class Source:
    """Encoded images or clips, split; without ``classes`` files have no labels."""

    settings: Mapping[str, Any]
    """The part of the manifest that describes them."""
    counts: Mapping[str, int]
    read: Callable[[str, int], Named]
    """(split, place) to the file there."""
    classes: int | None = None

    @classmethod
    def of_files(
        cls,
        settings: Mapping[str, Any],
        folders: Mapping[str, Path],
        names: Mapping[str, Sequence[str]],
        classes: Sequence[str] = (),
        shown: str = "{split}/{name}",
    ) -> "Source":
        """Return the files of these names in the folder of each split, where ``classes`` are the folders of each class;
        ``shown`` is how messages name a file.
        """
        numbers = {one: label for label, one in enumerate(classes)}

        def read(split: str, place: int) -> Named:
            name = names[split][place]
            label = numbers.get(name.partition("/")[0])
            return shown.format(split=split, name=name), partial(encoded, folders[split] / name), label

        return cls(settings, {split: len(some) for split, some in names.items()}, read, len(classes) or None)


def hash_of_names(names: Mapping[str, Sequence[str]]) -> str:
    """Return SHA-256 of the names of the files of each split: what a folder is, so that a file may be mended."""
    listing = "\n".join(f"{split}/{name}" for split, some in names.items() for name in some)
    return sha256_of_bytes(os.fsencode(listing))


def first_of(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


@dataclass(frozen=True)
class _Decoded(Dataset[tuple[str, int | None, Any]]):
    """Name and label of each file of a split and its content, or the UnfitError that says why it has none."""

    source: Source
    split: str
    decode: Callable[[bytes], Any]

    def __getitem__(self, place: int) -> tuple[str, int | None, Any]:
        name, read, label = self.source.read(self.split, place)
        try:
            return name, label, self.decode(read())
        except UnfitError as error:
            return name, label, error
        except OSError as error:
            return name, label, UnfitError(f"cannot be read ({error.strerror or error})")

    def loader(self, places: range, workers: int) -> DataLoader[tuple[str, int | None, Any]]:
        """Return the files at these places in order, decoded by worker processes; 1: by this process alone."""
        several: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork"} if workers > 1 else {}
        start = leave_signals_to_the_parent
        return DataLoader(
            self, None, sampler=places, collate_fn=lambda content: content, worker_init_fn=start, **several
        )


def write_decoded(
    folder: ShardFolder[M],
    source: Source,
    size: int,
    decode: Callable[[bytes], T],
    store: Callable[[int, int | None, T], Stored],
    counted: Sequence[str],
    skip: bool = False,
    workers: int = 1,
) -> M:
    """Decode every file of a source and write shards of ``size`` files, then the manifest.

    The same call goes on after a kill, makes again shards that are missing, damaged or had files left out, and ends in
    the same bytes as an undisturbed call.  The bytes do not depend on ``workers``.

    Args:
        folder, source, size: the shards' folder, the files, files of a shard.
        decode: from the bytes of a file to its content; called by the workers.
        store: from a file's place in its split, its label and its content to what a shard keeps of it; like ``decode``
            it may raise UnfitError.
        counted: the names of the counts that every shard has; others are left out where they are 0.
        skip: leave out unfit files and note them in the manifest; otherwise refuse them all at the end.
        workers: processes that decode.

    Raises:
        UsageError: unfit files are refused, the folder holds data of other settings, or a worker was killed.
    """
    at_least("workers", workers)
    refused: dict[str, str] = {}
    kind, counts = folder.kind.kind, source.counts

    def make(name: str, split: str, first: int) -> Shard | None:
        places = range(first, min(first + size, counts[split]))
        stored, unfit = list[Stored](), dict[str, str]()
        loader = _Decoded(source, split, decode).loader(places, workers)
        for place, (file, label, content) in zip(places, loader, strict=True):
            try:
                if isinstance(content, UnfitError):
                    raise content
                stored.append(store(place, label, content))
            except UnfitError as error:
                unfit[file] = str(error)
        if unfit and not skip:
            refused.update(unfit)
            return None
        whole = b"".join(part for array in zip(*(parts for parts, _ in stored), strict=True) for part in array)
        folder.put(name, whole)
        print(f"{name}: {kind} {places.stop:,} of {counts[split]:,}, {len(unfit)} left out")
        total = sum((Counter(own) for _, own in stored), Counter[str]())  # without those that are 0
        return Shard(name, split, {**dict.fromkeys(counted, 0), **total}, sha256_of_bytes(whole), unfit)

    with held(folder.folder):
        try:
            shards = folder.in_order(counts, make, lambda _: size)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UsageError(
                "a process that decodes was ended from outside, perhaps because memory was short; what is finished "
                "stays: give the same command again, with fewer --workers"
            ) from error
        if refused:
            raise UsageError(
                f"{len(refused):,} of {sum(counts.values()):,} {kind} are unfit: {named(refused)}; mend them and give "
                "the same command again, or leave them out with --on-corrupt skip"
            )
        return folder.finish(shards)


# Images.

SHARD_BYTES, SHARD_FACES = 2**27, 1024
COLUMN, LABEL_COLUMN = "image", "label"
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
PARQUET = ("*.parquet", "*/*.parquet")
VAL_NAMES = ("val", "validation", "valid")
"""Names that a folder, a split of the hub or parquet files of ``VAL`` may have."""
PARTITION, FACES = "list_eval_partition.txt", "img_align_celeba"
PARTITION_SPLITS = {"0": TRAIN, "1": VAL, "2": TEST}
PARTITION_PLACES = (PARTITION, f"Eval/{PARTITION}")
FACE_PLACES = (f"{FACES}/{FACES}", FACES, f"Img/{FACES}")


@dataclass(frozen=True)
class ImageSet:
    """A data set of images that is prepared by its name."""

    hub: str
    expected: str
    folders: Mapping[str, Sequence[str]]
    """Names of the folder of each split, where there are folders."""
    splits: tuple[str, ...] = (TRAIN, VAL)
    labelled: bool = False
    """Whether an image has a class, and lies in the folder of that class."""


IMAGE_SETS: Mapping[str, ImageSet] = {
    "coco": ImageSet(
        "AbdoTW/COCO_2014",
        "a folder with train2014/ and val2014/, each with images, or with the parquet files of AbdoTW/COCO_2014",
        {TRAIN: ("train2014", "train"), VAL: ("val2014", "val", "validation")},
    ),
    "imagenet": ImageSet(
        "ILSVRC/imagenet-1k",
        "a folder with train/ and val/, each with a folder of images for each class, or with the parquet files of "
        "ILSVRC/imagenet-1k",
        {TRAIN: ("train",), VAL: VAL_NAMES},
        labelled=True,
    ),
    "celeba": ImageSet(  # eurecom-ds/celeba is another copy
        "flwrlabs/celeba@2d738f56e0e7f925ea36ae7c808ea925264aacec",
        f"a folder with {FACES}/ and {PARTITION}, or with the parquet files of flwrlabs/celeba",
        {},
        (TRAIN, VAL, TEST),
    ),
}


def write_images(
    folder: Path,
    source: Source,
    crop: CentralSquare | AlignedSquare,
    skip: bool = False,
    shard_images: int | None = None,
    workers: int = 1,
) -> ImageManifest:
    """Write the crop of every image into shards of ``shard_images`` images, or 128 MiB, labels behind them.

    ``write_decoded`` explains the other arguments and the errors.
    """
    arrays, classes = {IMAGES: pixels_of(crop.size)}, source.classes
    size = shard_images or max(1, SHARD_BYTES // arrays[IMAGES].itemsize)
    if classes is not None:
        arrays[LABELS] = LABEL
    settings = {**source.settings, **crop.settings, "shard_images": size, "arrays": described(arrays)}
    if classes is not None:
        settings[CLASSES] = classes

    def store(place: int, label: int | None, image: tuple[Pixels, bool]) -> Stored:
        parts, counts = [image[0].tobytes()], {IMAGES: 1, GREY: int(image[1])}
        if classes is not None:
            if label is None or not 0 <= label < classes:
                raise UnfitError(f"label {label}, expected 0 to {classes - 1}")
            parts.append(np.array(label, LABEL).tobytes())
        return parts, counts

    shards = ShardFolder(folder, settings, ImageManifest)
    return write_decoded(shards, source, size, crop, store, [IMAGES], skip, workers)


def load_images(name: str, path: Path | None = None, hub: str | None = None) -> Source:
    """Return the images of a data set in ``IMAGE_SETS``.

    Args:
        name: of the data set.
        path: a folder with a folder of images, or of classes, for each split, CelebA's official files, or parquet
            files; None: the hub.
        hub: the data set of the hub, ``NAME`` or ``NAME@COMMIT``; None: the usual one.

    Raises:
        UsageError: a folder, split, column or image is absent, the splits have other classes, or the hub does not
            answer.
    """
    known = IMAGE_SETS[name]
    if path is None:
        usual = hub is None or hub == known.hub.partition("@")[0]
        return _of_hub(known, name, known.hub if usual else str(hub))
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such folder; --from takes {known.expected}")
    if not known.folders:
        return _official_faces(known, path)
    if any(any(path.glob(pattern)) for pattern in PARQUET):
        return _of_parquet(known, name, path)
    found = {split: first_of(path, some) for split, some in known.folders.items()}
    folders = {split: folder for split, folder in found.items() if folder is not None and folder.is_dir()}
    if len(folders) < len(found):
        names = ", ".join(folder.name for folder in folders.values()) or "neither"
        raise UsageError(f"{path}: found {names}, expected {known.expected}")
    return _of_folders(known, name, folders)


def _of_hub(known: ImageSet, name: str, where: str) -> Source:
    """Return the images of ``NAME`` or ``NAME@COMMIT``; without a commit the one that it has now is taken."""
    from datasets import load_dataset
    from huggingface_hub import HfApi

    place, _, commit = where.partition("@")
    with given(where, "get its files otherwise and say --from DIR; if it asks for an account, run: hf auth login"):
        revision = commit or HfApi().dataset_info(place).sha
        rows = load_dataset(place, revision=revision)
    return _of_rows(known, rows, place, {"name": name, "from": place, "revision": revision})


def _of_parquet(known: ImageSet, name: str, path: Path) -> Source:
    from datasets import load_dataset

    with given(path, f"expected {known.expected}"):
        rows = load_dataset(str(path))
    sizes = sorted(f"{file.name} {file.stat().st_size}" for file in path.rglob("*.parquet"))
    digest = sha256_of_bytes("\n".join(sizes).encode())
    return _of_rows(known, rows, str(path), {"name": name, "from": "parquet files", "names_and_sizes": digest})


def _of_rows(known: ImageSet, rows: Any, where: str, settings: Mapping[str, Any]) -> Source:
    """Return the images of the data sets that messages call ``where``; they stay encoded until a worker reads them."""
    from datasets import Image

    images, labels = {}, {}
    for split in known.splits:
        names = VAL_NAMES if split == VAL else (split,)
        name = next((name for name in names if name in rows), None)
        for column in (COLUMN, LABEL_COLUMN) if known.labelled else (COLUMN,):
            if name is None or column not in rows[name].column_names:
                found = "; ".join(f"{other}: {', '.join(rows[other].column_names)}" for other in rows)
                raise UsageError(
                    f"{where}: expected a split {' or '.join(names)} with a column {column!r}, found {found}"
                )
        images[split] = rows[name].select_columns([COLUMN]).cast_column(COLUMN, Image(decode=False))
        if known.labelled:
            labels[split] = rows[name][LABEL_COLUMN]

    def read(split: str, place: int) -> Named:
        label = labels[split][place] if known.labelled else None
        return f"{split} {place}", partial(_content, images[split], place), label

    classes = _count_classes(labels[TRAIN], where) if known.labelled else None
    return Source(settings, {split: len(some) for split, some in images.items()}, read, classes)


def _count_classes(labels: Any, where: str) -> int:
    """Return how many classes a column of labels has: as many as it names, or up to its largest number."""
    classes: int | None = getattr(labels.features, "num_classes", None)
    if classes is not None:
        return classes
    found = set(labels[:]) - {None}
    if not found or not all(type(one) is int and one >= 0 for one in found):
        raise UsageError(f"{where}: column {LABEL_COLUMN!r} holds {labels.features}, expected whole numbers from 0")
    return max(found) + 1


def _content(rows: Any, place: int) -> bytes:
    image = rows[place][COLUMN]
    if image is None:
        raise OSError("no image in this row")
    content: bytes = image["bytes"] if image["bytes"] is not None else encoded(Path(image["path"]))
    return content


def _of_folders(known: ImageSet, name: str, folders: Mapping[str, Path]) -> Source:
    """Return the images in the folder of each split; if labelled, in its folders of classes, in the order of names."""
    classes: list[str] = []
    if known.labelled:
        found = {split: sorted(path.name for path in one.iterdir() if path.is_dir()) for split, one in folders.items()}
        classes = found[TRAIN]
        if not classes or found[VAL] != classes:
            raise UsageError(
                f"{folders[VAL]}: {len(found[VAL]):,} folders of classes, expected the same {len(classes):,} as in "
                f"{folders[TRAIN]}"
            )
    names = {
        split: [file.relative_to(folder).as_posix() for one in classes or ["."] for file in _images_in(folder / one)]
        for split, folder in folders.items()
    }
    settings = {"name": name, "from": "folders of images", "names": hash_of_names(names)}
    return Source.of_files(settings, folders, names, classes)


def _images_in(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise UsageError(f"{folder}: no images in this folder; their names end with {', '.join(IMAGE_SUFFIXES)}")
    return found


def _official_faces(known: ImageSet, path: Path) -> Source:
    """Return CelebA's images, split by the official file, or those of parquet files."""
    partition, images = first_of(path, PARTITION_PLACES), first_of(path, FACE_PLACES)
    if partition is None and images is None and any(path.rglob("*.parquet")):
        return _of_parquet(known, "celeba", path)
    if partition is None or images is None:
        found = ", ".join(str(place.relative_to(path)) for place in (partition, images) if place is not None)
        raise UsageError(f"{path}: found {found or 'neither'}, expected {known.expected}")
    names = _partition(partition)
    listed = {name for some in names.values() for name in some}
    if beyond := sorted(file.name for file in images.glob("*.jpg") if file.name not in listed):
        raise UsageError(
            f"{partition}: lists {len(listed):,} images, not {len(beyond):,} that are in {images} ({beyond[0]} ...): "
            "get the whole split file"
        )
    settings = {"name": "celeba", "from": "official files", "partition": sha256_of_file(partition)}
    return Source.of_files(settings, dict.fromkeys(names, images), names, shown="{name}")


def _partition(path: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {split: [] for split in PARTITION_SPLITS.values()}
    for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
        words = line.split()
        if len(words) != 2 or words[1] not in PARTITION_SPLITS or Path(words[0]).name != words[0]:
            raise UsageError(
                f"{path}:{number}: {line[:40]!r}, expected an image and its split, 0, 1 or 2: get the official file"
            )
        names[PARTITION_SPLITS[words[1]]].append(words[0])
    return names


# Clips.

CLIP_SUFFIXES = (".avi", ".mkv", ".mov", ".mp4", ".webm")
CLIP_PLACES = ("20bn-something-something-v2", "videos", ".")
LABEL_FILES = {
    TRAIN: ("something-something-v2-train.json", "labels/train.json", "train.json"),
    TEST: ("something-something-v2-validation.json", "labels/validation.json", "validation.json"),
}
"""The official lists of each split; what is tested on here are the official validation clips."""
CLIP_FOLDERS = {TRAIN: ("train",), TEST: ("validation", "val", "test")}
EXPECTED_CLIPS = (
    "a folder with the clips <id>.webm in 20bn-something-something-v2/ and the official lists "
    "something-something-v2-train.json and -validation.json, or with train/ and validation/, folders of clips"
)
SHARD_CLIPS = 256
FRAMES_AT_ONCE = 32


class FrozenVAE:
    """Encodes frames as the mean of an AutoencoderKL's posterior, as EBT's code does for appendix D.2: not scaled.

    ``vae`` is a diffusers AutoencoderKL, ``size`` is H.  UsageError: it cannot encode a frame of this size.
    """

    def __init__(self, vae: nn.Module, size: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.vae, self.size = vae.eval().requires_grad_(False).to(self.device), size
        try:
            self.shape = self.encode(np.zeros((1, size, size, 3), np.uint8)).shape[1:]
        except RuntimeError as error:
            raise UsageError(f"the autoencoder cannot encode a frame of 3 x {size} x {size} ({error})") from error

    @property
    def settings(self) -> Mapping[str, Any]:
        digest = sha256()
        for name, tensor in sorted(self.vae.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.float().cpu().numpy().tobytes())
        return {"weights": digest.hexdigest(), "latent": "mean, not scaled", "pixels": "-1 to 1"}

    @torch.no_grad()
    def encode(self, frames: Pixels) -> NDArray[np.float16]:
        """Return the latents of frames (F, H, H, 3), (F, C, S, S)."""
        found = []
        for first in range(0, len(frames), FRAMES_AT_ONCE):
            some = torch.from_numpy(np.array(frames[first : first + FRAMES_AT_ONCE])).to(self.device)
            pixels = some.permute(0, 3, 1, 2).float() / 127.5 - 1  # (F, 3, H, H)
            found.append(self.vae.encode(pixels).latent_dist.mean.cpu())  # type: ignore[operator]
        return torch.cat(found).numpy().astype(LATENT)


def load_vae(name: str, size: int, download: bool) -> FrozenVAE:
    """Return the autoencoder of a folder that diffusers saved, or of that name on the hub, for frames of side ``size``;
    without ``download`` only one that was fetched before.
    """
    from diffusers import AutoencoderKL

    path = Path(name).expanduser()
    where = str(path) if path.is_dir() else name
    try:
        vae = AutoencoderKL.from_pretrained(where, local_files_only=not download, low_cpu_mem_usage=False)
    except Exception as error:  # whatever the hub's client, the reader of weights or a wrong config raises
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"--vae {name}: no autoencoder of diffusers could be read ({reason}): give the folder of one, or its name "
            "on the hub and --download"
        ) from error
    return FrozenVAE(vae, size)


def load_clips(folder: Path) -> Source:
    """Return the clips of a folder; UsageError: no official lists or folders of clips, or an empty split."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; --from takes {EXPECTED_CLIPS}")
    found = {split: first_of(folder, names) for split, names in LABEL_FILES.items()}
    lists = {split: path for split, path in found.items() if path is not None}
    inside = {split: first_of(folder, names) for split, names in CLIP_FOLDERS.items()}
    places = {split: path for split, path in inside.items() if path is not None}
    if len(lists) == len(LABEL_FILES):
        places = dict.fromkeys(lists, first_of(folder, CLIP_PLACES) or folder)
        names = {split: [f"{number}.webm" for number in _numbers(path)] for split, path in lists.items()}
    elif len(places) == len(CLIP_FOLDERS):
        names = {
            split: sorted(one.name for one in path.iterdir() if one.suffix.lower() in CLIP_SUFFIXES)
            for split, path in places.items()
        }
    else:
        listed = ", ".join(str(path.relative_to(folder)) for path in lists.values()) or "neither"
        raise UsageError(f"{folder}: found {listed}, expected {EXPECTED_CLIPS}")
    for split, some in names.items():
        if not some:
            raise UsageError(f"{folder}: no clips of split {split!r}; expected {EXPECTED_CLIPS}")
    settings = {"name": "something-something", "from": "clips on disk", "names": hash_of_names(names)}
    return Source.of_files(settings, places, names)


def _numbers(path: Path) -> list[str]:
    try:
        return [str(int(entry["id"])) for entry in json.loads(path.read_bytes())]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: no list of clips, each with a number as id ({error!r}): get the official file"
        ) from error


def write_clips(folder: Path, source: Source, vae: FrozenVAE, skip: bool = False, workers: int = 1) -> LatentManifest:
    """Write the latent of every frame of every clip, half precision, into shards of 256 clips.

    ``write_decoded`` explains the other arguments and the errors.
    """
    import_av()
    settings = {
        **source.settings,
        "frame": {"size": vae.size, "resized": "bilinear with antialiasing, nothing cut off"},
        "encoder": vae.settings,
        "shard_clips": SHARD_CLIPS,
        "arrays": described(arrays_of(vae.shape)),
    }

    def store(place: int, label: int | None, clip: Clip) -> Stored:
        arrays = vae.encode(clip.frames), np.full(len(clip.times), place, NUMBER), clip.times.astype(SECONDS)
        return [array.tobytes() for array in arrays], {LATENTS: len(clip.times), CLIPS: 1}

    shards = ShardFolder(folder, settings, LatentManifest)
    decode = partial(decode_clip, size=vae.size)
    return write_decoded(shards, source, SHARD_CLIPS, decode, store, [LATENTS, CLIPS], skip, workers)
