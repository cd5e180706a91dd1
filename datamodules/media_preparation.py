"""Encoded images and clips to shards: COCO, ImageNet and CelebA as pixels, Something-Something V2 as latents.

Images come from the hub or from folders of images, clips from a folder.  Files are decoded by worker
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
from paper_repro.datamodules.array_shards import Manifest, Shard, ShardFolder, described, held, named
from paper_repro.datamodules.counter_based import leave_signals_to_the_parent
from paper_repro.datamodules.downloads import given
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.pixels import AlignedSquare, CentralSquare, Pixels, UnfitError, encoded
from paper_repro.datamodules.prepared_clips import CLIPS, LATENT, LATENTS, NUMBER, SECONDS, arrays_of
from paper_repro.datamodules.prepared_images import CLASSES, GREY, IMAGES, LABEL, LABELS, pixels_of
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
    folder: ShardFolder,
    source: Source,
    size: int,
    decode: Callable[[bytes], T],
    store: Callable[[int, int | None, T], Stored],
    counted: Sequence[str],
    skip: bool = False,
    workers: int = 1,
) -> Manifest:
    """Decode every file of a source and write shards of ``size`` files, then the manifest.

    The same call goes on after a kill, makes again shards that are missing, damaged or had files left out, and ends in
    the same bytes as an undisturbed call.  The bytes do not depend on ``workers``.

    Args:
        folder, source, size: the shards' folder, the files, files of a shard.
        decode: from the bytes of a file to its content; called by the workers.
        store: from a file's place in its split, its label and its content to what a shard keeps of it; like ``decode``
            it may raise UnfitError.
        counted: the names of the counts that every shard has, the last one of files; others are left out where they
            are 0.
        skip: leave out unfit files and note them in the manifest; otherwise refuse them all at the end.
        workers: processes that decode.

    Raises:
        UsageError: unfit files are refused, or the folder holds data of other settings.
    """
    at_least("workers", workers)
    refused: dict[str, str] = {}
    counts = source.counts

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
        print(f"{name}: {counted[-1]} {places.stop:,} of {counts[split]:,}, {len(unfit)} left out")
        total = sum((Counter(own) for _, own in stored), Counter[str]())  # without those that are 0
        return Shard(name, split, {**dict.fromkeys(counted, 0), **total}, sha256_of_bytes(whole), unfit)

    with held(folder.folder):
        shards = folder.in_order(counts, make, lambda _: size)
        if refused:
            raise UsageError(
                f"{len(refused):,} of {sum(counts.values()):,} {counted[-1]} are unfit: {named(refused)}; mend them "
                "and give the same command again, or leave them out with --on-corrupt skip"
            )
        return folder.finish(shards)


# Images.

SHARD_BYTES, SHARD_FACES = 2**27, 1024
COLUMN, LABEL_COLUMN = "image", "label"
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
VAL_NAMES = ("val", "validation", "valid")
"""Names that a split of the hub may have which is ``VAL`` here."""
PARTITION, FACES = "list_eval_partition.txt", "img_align_celeba"
PARTITION_SPLITS = {"0": TRAIN, "1": VAL, "2": TEST}


@dataclass(frozen=True)
class ImageSet:
    """A data set of images that is prepared by its name."""

    hub: str
    """``NAME`` or ``NAME@COMMIT`` on the hub."""
    files: tuple[str, ...]
    """What ``--from`` must hold: a folder for each split, or CelebA's official files."""
    splits: tuple[str, ...] = (TRAIN, VAL)
    labelled: bool = False
    """Whether an image has a class, and lies in the folder of that class."""


IMAGE_SETS: Mapping[str, ImageSet] = {
    "coco": ImageSet("AbdoTW/COCO_2014", ("train2014", "val2014")),
    "imagenet": ImageSet("ILSVRC/imagenet-1k", ("train", "val"), labelled=True),
    "celeba": ImageSet(  # eurecom-ds/celeba is another copy
        "flwrlabs/celeba@2d738f56e0e7f925ea36ae7c808ea925264aacec", (FACES, PARTITION), (TRAIN, VAL, TEST)
    ),
}


def write_images(
    folder: Path,
    source: Source,
    crop: CentralSquare | AlignedSquare,
    skip: bool = False,
    shard_images: int | None = None,
    workers: int = 1,
) -> Manifest:
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
            parts.append(np.array(label, LABEL).tobytes())
        return parts, counts

    shards = ShardFolder(folder, settings)
    return write_decoded(shards, source, size, crop, store, [IMAGES], skip, workers)


def load_images(name: str, path: Path | None = None) -> Source:
    """Return the images of a data set in ``IMAGE_SETS``.

    Args:
        name: of the data set.
        path: a folder with a folder of images, or of classes, for each split, or CelebA's official files; None: the
            hub.

    Raises:
        UsageError: a folder or image is absent, the splits have other classes, or the hub does not answer.
    """
    known = IMAGE_SETS[name]
    if path is None:
        return _of_hub(known, name)
    for needed in known.files:
        if not (path / needed).exists():
            raise UsageError(f"{path / needed} is not there: --from takes a folder with {' and '.join(known.files)}")
    return _official_faces(path) if PARTITION in known.files else _of_folders(known, name, path)


def _of_hub(known: ImageSet, name: str) -> Source:
    """Return the images of ``NAME`` or ``NAME@COMMIT``; without a commit the one that it has now is taken.

    They stay encoded until a worker reads them.
    """
    from datasets import Image, load_dataset
    from huggingface_hub import HfApi

    place, _, commit = known.hub.partition("@")
    with given(place, "get its files otherwise and say --from DIR; if it asks for an account, run: hf auth login"):
        revision = commit or HfApi().dataset_info(place).sha
        rows = load_dataset(place, revision=revision)
        names = {split: VAL_NAMES if split == VAL else (split,) for split in known.splits}
        parts = {split: rows[next(one for one in some if one in rows)] for split, some in names.items()}
        images = {
            split: part.select_columns([COLUMN]).cast_column(COLUMN, Image(decode=False))
            for split, part in parts.items()
        }
        labels = {split: part[LABEL_COLUMN] for split, part in parts.items()} if known.labelled else {}
        classes = parts[TRAIN].features[LABEL_COLUMN].num_classes if known.labelled else None

    def read(split: str, place: int) -> Named:
        label = labels[split][place] if known.labelled else None
        return f"{split} {place}", partial(_content, images[split], place), label

    settings = {"name": name, "from": place, "revision": revision}
    return Source(settings, {split: len(some) for split, some in images.items()}, read, classes)


def _content(rows: Any, place: int) -> bytes:
    content: bytes = rows[place][COLUMN]["bytes"]
    return content


def _of_folders(known: ImageSet, name: str, path: Path) -> Source:
    """Return the images in the folder of each split; if labelled, in its folders of classes, in the order of names."""
    folders = {split: path / one for split, one in zip(known.splits, known.files, strict=True)}
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


def _official_faces(path: Path) -> Source:
    """Return CelebA's images, split by the official file."""
    partition, images = path / PARTITION, path / FACES
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

CLIPS_FOLDER = "20bn-something-something-v2"
LABEL_FILES = {TRAIN: "something-something-v2-train.json", TEST: "something-something-v2-validation.json"}
"""The official lists of each split; what is tested on here are the official validation clips."""
SHARD_CLIPS = 256
FRAMES_AT_ONCE = 32


class FrozenVAE:
    """Encodes frames as the mean of an AutoencoderKL's posterior, as EBT's code does for appendix D.2: not scaled.

    ``vae`` is a diffusers AutoencoderKL, ``size`` is H.
    """

    def __init__(self, vae: nn.Module, size: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.vae, self.size = vae.eval().requires_grad_(False).to(self.device), size
        self.shape = self.encode(np.zeros((1, size, size, 3), np.uint8)).shape[1:]

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
    """Return the clips of a folder, <id>.webm in 20bn-something-something-v2/, in the order of the official lists;
    UsageError: a list is absent, empty or no list of clips.
    """
    names: dict[str, list[str]] = {}
    for split, file in LABEL_FILES.items():
        try:
            names[split] = [f"{int(entry['id'])}.webm" for entry in json.loads((folder / file).read_bytes())]
            if not names[split]:
                raise ValueError("no clips")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder / file}: no list of clips, each with a number as id ({error}): give a folder with the clips "
                f"in {CLIPS_FOLDER}/ and the official lists {' and '.join(LABEL_FILES.values())}"
            ) from error
    settings = {"name": "something-something", "from": "clips on disk", "names": hash_of_names(names)}
    return Source.of_files(settings, dict.fromkeys(names, folder / CLIPS_FOLDER), names)


def write_clips(folder: Path, source: Source, vae: FrozenVAE, skip: bool = False, workers: int = 1) -> Manifest:
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

    shards = ShardFolder(folder, settings)
    decode = partial(decode_clip, size=vae.size)
    return write_decoded(shards, source, SHARD_CLIPS, decode, store, [LATENTS, CLIPS], skip, workers)
