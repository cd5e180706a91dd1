"""Encoded images and clips to shards: COCO, ImageNet and CelebA as pixels, Something-Something V2 as latents.

Files are decoded by worker processes; frames are encoded in this process by a frozen autoencoder.
Letters: F frames of a clip, H side of a frame, C channels and S side of a latent.
"""

import json
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
from paper_repro.datamodules.array_shards import Manifest, Shard, ShardFolder, Values, described
from paper_repro.datamodules.counter_based import leave_signals_to_the_parent
from paper_repro.datamodules.downloads import given, load, split_of
from paper_repro.datamodules.image_sources import TEST, TRAIN, VAL
from paper_repro.datamodules.pixels import Pixels, UnfitError
from paper_repro.datamodules.prepared_clips import CLIPS, LATENT, LATENTS, NUMBER, SECONDS
from paper_repro.datamodules.prepared_clips import arrays_of as arrays_of_clips
from paper_repro.datamodules.prepared_images import CLASSES, IMAGES, LABEL, arrays_of
from paper_repro.datamodules.video_sources import Clip, decode_clip, import_av

T = TypeVar("T")
Stored = tuple[Sequence[Values], Mapping[str, int]]
"""What a file adds to each array of a shard, and the numbers that it adds to the shard's counts."""


@dataclass(frozen=True)
class Source:
    """Encoded images or clips, split; without ``classes`` files have no labels."""

    settings: Mapping[str, Any]
    """The part of the manifest that describes them."""
    counts: Mapping[str, int]
    read: Callable[[str, int], tuple[str, bytes, int | None]]
    """(split, place) to name, content and label of the file there; it may raise OSError."""
    classes: int | None = None


@dataclass(frozen=True)
class _Decoded(Dataset[tuple[int | None, Any]]):
    """Label and content of each file of a split, or the UnfitError that names it."""

    source: Source
    split: str
    decode: Callable[[bytes], Any]

    def __getitem__(self, place: int) -> tuple[int | None, Any]:
        name = f"{self.split} {place}"
        try:
            name, content, label = self.source.read(self.split, place)
            return label, self.decode(content)
        except (UnfitError, OSError) as error:
            return None, UnfitError(f"{name}: {error}")


def write_decoded(
    folder: ShardFolder,
    source: Source,
    size: int,
    decode: Callable[[bytes], T],
    store: Callable[[int, int | None, T], Stored],
    workers: int = 1,
) -> Manifest:
    """Decode every file of a source and write shards of ``size`` files, then the manifest.

    The same call goes on after a kill, makes again shards that are missing or damaged, and ends in the same bytes as an
    undisturbed call.  The bytes do not depend on ``workers``.

    Args:
        folder, source, size: the shards' folder, the files, files of a shard.
        decode: from the bytes of a file to its content; called by the workers.
        store: from a file's place in its split, its label and its content to what a shard keeps of it.
        workers: processes that decode; 1: this process alone.

    Raises:
        UsageError: a file cannot be decoded, or the folder holds data of other settings.
    """
    at_least("workers", workers)
    counts = source.counts
    options: dict[str, Any] = {"collate_fn": lambda content: content, "worker_init_fn": leave_signals_to_the_parent}
    options |= {"num_workers": workers, "multiprocessing_context": "fork"} if workers > 1 else {}

    def make(split: str, name: str, first: int, before: Sequence[Shard]) -> Shard:
        places = range(first, min(first + size, counts[split]))
        stored: list[Stored] = []
        loader = DataLoader(_Decoded(source, split, decode), None, sampler=places, **options)
        for place, (label, content) in zip(places, loader, strict=True):
            if isinstance(content, UnfitError):
                raise UsageError(f"{content}: mend it, and give the same command again") from content
            stored.append(store(place, label, content))
        columns = zip(*(arrays for arrays, _ in stored), strict=True)
        whole = b"".join(one.tobytes() for column in columns for one in column)
        folder.put(name, whole)
        print(f"{name}: {folder.unit} {places.stop:,} of {counts[split]:,}")
        total = sum((Counter(own) for _, own in stored), Counter[str]())
        return Shard(name, split, dict(total), sha256_of_bytes(whole))

    with folder.held():
        parts = [folder.complete(split, count, partial(make, split)) for split, count in counts.items()]
        return folder.finish([shard for part in parts for shard in part])


# Images.

SHARD_BYTES = 2**27
COLUMN, LABEL_COLUMN = "image", "label"
VAL_NAMES = ("validation", "valid")
"""Names that a split of a source may have which is ``VAL`` here."""
FACES, PARTITION, PARTITIONS = "img_align_celeba", "list_eval_partition.txt", {"0": TRAIN, "1": VAL, "2": TEST}


@dataclass(frozen=True)
class ImageSet:
    """A data set of images that is prepared by its name."""

    hub: str
    """``NAME`` or ``NAME@COMMIT`` on the hub."""
    splits: tuple[str, ...] = (TRAIN, VAL)
    labelled: bool = False
    """Whether an image has a class."""


IMAGE_SETS: Mapping[str, ImageSet] = {
    "coco": ImageSet("AbdoTW/COCO_2014"),
    "imagenet": ImageSet("ILSVRC/imagenet-1k", labelled=True),
    "celeba": ImageSet("flwrlabs/celeba@2d738f56e0e7f925ea36ae7c808ea925264aacec", (TRAIN, VAL, TEST)),
}


def write_images(
    folder: Path, source: Source, crop: Callable[[bytes], Pixels], side: int, workers: int = 1
) -> Manifest:
    """Write the square that ``crop`` cuts of every image, (side, side, 3), into shards of at most 128 MiB, and labels
    behind them.  ``write_decoded`` explains the other arguments and the errors.
    """
    classes = source.classes
    arrays = arrays_of(side, labelled=classes is not None)
    size = max(1, SHARD_BYTES // arrays[IMAGES].itemsize)
    settings = {**source.settings, "size": side, "shard_images": size, "arrays": described(arrays)}
    if classes is not None:
        settings[CLASSES] = classes

    def store(place: int, label: int | None, image: Pixels) -> Stored:
        return [image] if classes is None else [image, np.array(label, LABEL)], {IMAGES: 1}

    return write_decoded(ShardFolder(folder, settings, IMAGES), source, size, crop, store, workers)


def load_images(name: str, path: Path | None = None) -> Source:
    """Return the images of a data set in ``IMAGE_SETS``, which stay encoded until a worker reads them.

    Args:
        name: of the data set.
        path: a folder that the library datasets reads, such as one with a folder of images, or of a folder of images
            for each class, for each split; or one of CelebA's official files; None: the hub, at the commit of
            ``IMAGE_SETS``, or the one that it has now.

    Raises:
        UsageError: the folder or a split is absent, or the hub does not answer.
    """
    from datasets import Image
    from huggingface_hub import HfApi

    known = IMAGE_SETS[name]
    place, _, commit = known.hub.partition("@")
    settings: dict[str, Any] = {"name": name, "from": "local files"}
    if path is None:
        with given(place, "give --from DIR"):
            settings = {"name": name, "from": place, "revision": commit or HfApi().dataset_info(place).sha}
    official = path is not None and (path / PARTITION).is_file()
    rows = _official_faces(path) if path and official else load(place, path, revision=settings.get("revision"))
    rows = {VAL if split in VAL_NAMES else split: part for split, part in rows.items()}
    parts = {split: split_of(rows, split, path or place) for split in known.splits}
    with given(path or place, "its columns must be image and, for classes, label"):
        images = {
            split: part.select_columns([COLUMN]).cast_column(COLUMN, Image(decode=False))
            for split, part in parts.items()
        }
        labels = {split: part[LABEL_COLUMN] for split, part in parts.items()} if known.labelled else {}
        classes = parts[TRAIN].features[LABEL_COLUMN].num_classes if known.labelled else None

    def read(split: str, place: int) -> tuple[str, bytes, int | None]:
        image = images[split][place][COLUMN]
        content = Path(image["path"]).read_bytes() if image["bytes"] is None else image["bytes"]
        return image["path"] or f"{split} {place}", content, labels[split][place] if labels else None

    counts = {split: len(some) for split, some in images.items()}
    return Source({**settings, "images": counts}, counts, read, classes)


def _official_faces(path: Path) -> dict[str, Any]:
    """Return the paths of CelebA's aligned faces, in the splits of the official list."""
    from datasets import Dataset

    paths: dict[str, list[str]] = {split: [] for split in PARTITIONS.values()}
    with given(path / PARTITION, "each line must be the name of an image and its split, 0, 1 or 2"):
        for line in (path / PARTITION).read_text().splitlines():
            name, number = line.split()
            paths[PARTITIONS[number]].append(str(path / FACES / Path(name).name))
    return {split: Dataset.from_dict({COLUMN: some}) for split, some in paths.items()}


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
    paths: dict[str, list[Path]] = {}
    for split, file in LABEL_FILES.items():
        try:
            numbers = [int(entry["id"]) for entry in json.loads((folder / file).read_bytes())]
            paths[split] = [folder / CLIPS_FOLDER / f"{number}.webm" for number in numbers]
            if not numbers:
                raise ValueError("no clips")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder / file}: no list of clips, each with a number as id ({error}): give a folder with the clips "
                f"in {CLIPS_FOLDER}/ and the official lists {' and '.join(LABEL_FILES.values())}"
            ) from error

    def read(split: str, place: int) -> tuple[str, bytes, None]:
        path = paths[split][place]
        return str(path), path.read_bytes(), None

    lists = {split: sha256_of_file(folder / file) for split, file in LABEL_FILES.items()}
    settings = {"name": "something-something", "from": "clips on disk", "lists": lists}
    return Source(settings, {split: len(some) for split, some in paths.items()}, read)


def write_clips(folder: Path, source: Source, vae: FrozenVAE, workers: int = 1) -> Manifest:
    """Write the latent of every frame of every clip, half precision, into shards of 256 clips.

    ``write_decoded`` explains the other arguments and the errors.
    """
    import_av()
    settings = {
        **source.settings,
        "frame": {"size": vae.size, "resized": "bilinear with antialiasing, nothing cut off"},
        "encoder": vae.settings,
        "shard_clips": SHARD_CLIPS,
        "arrays": described(arrays_of_clips(vae.shape)),
    }

    def store(place: int, label: int | None, clip: Clip) -> Stored:
        frames = len(clip.times)
        arrays = vae.encode(clip.frames), np.full(frames, place, NUMBER), clip.times.astype(SECONDS)
        return arrays, {LATENTS: frames, CLIPS: 1}

    decode = partial(decode_clip, size=vae.size)
    return write_decoded(ShardFolder(folder, settings, CLIPS), source, SHARD_CLIPS, decode, store, workers)
