"""Encoded clips to latents: frames are decoded and resized by workers, and encoded by a frozen network here.

Letters: F frames of a clip, H side of a frame.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.array_shards import Array
from paper_repro.datamodules.array_writing import ShardFolder
from paper_repro.datamodules.encoded_files import Source, first_of, write_decoded
from paper_repro.datamodules.frame_encoders import FrozenVAE
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_sources import TEST, TRAIN
from paper_repro.datamodules.prepared_clips import (
    CLIP,
    CLIPS,
    LATENT,
    LATENTS,
    NUMBER,
    SECONDS,
    TIMES,
    LatentManifest,
)
from paper_repro.datamodules.video_sources import decode_clip

SUFFIXES = (".avi", ".mkv", ".mov", ".mp4", ".webm")
"""What the names of clips end with; other files in a folder are passed over."""
CLIP_PLACES = ("20bn-something-something-v2", "videos", ".")
LABEL_FILES = {
    TRAIN: ("something-something-v2-train.json", "labels/train.json", "train.json"),
    TEST: ("something-something-v2-validation.json", "labels/validation.json", "validation.json"),
}
"""The official lists of each split; what is tested on here are the official validation clips."""
FOLDERS = {TRAIN: ("train",), TEST: ("validation", "val", "test")}
EXPECTED = (
    "a folder with the clips <id>.webm in 20bn-something-something-v2/ and the official lists "
    "something-something-v2-train.json and -validation.json, or with train/ and validation/, folders of clips"
)
SHARD_CLIPS = 256


class Frames(NamedTuple):
    """A clip that was decoded."""

    pixels: Pixels
    """(F, H, H, 3)."""
    times: NDArray[np.float64]
    """(F)."""


@dataclass(frozen=True)
class Resize:
    """Every frame of an encoded clip at ``size`` x ``size``, nothing cut off; it is sent to other processes."""

    size: int

    def __call__(self, content: bytes) -> Frames:
        """Return the frames.

        Raises:
            UnfitError: the clip cannot be used.
        """
        clip = decode_clip(content, size=self.size)
        return Frames(clip.frames, clip.times)


def load(folder: Path) -> Source:
    """Return the clips of a folder.

    Raises:
        UsageError: it holds neither official lists nor folders of clips, a list is no such list, or a split is empty.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; --from takes {EXPECTED}")
    lists = {split: first_of(folder, names) for split, names in LABEL_FILES.items()}
    folders = {split: first_of(folder, names) for split, names in FOLDERS.items()}
    places: dict[str, Path] = {}
    names: dict[str, list[str]] = {}
    if all(lists.values()):
        for split, path in lists.items():
            if path is not None:
                places[split] = first_of(folder, CLIP_PLACES) or folder
                names[split] = [f"{number}.webm" for number in _numbers(path)]
    elif all(folders.values()):
        for split, path in folders.items():
            if path is not None:
                places[split] = path
                names[split] = sorted(one.name for one in path.iterdir() if one.suffix.lower() in SUFFIXES)
    else:
        found = ", ".join(str(path.relative_to(folder)) for path in lists.values() if path is not None) or "neither"
        raise UsageError(f"{folder}: found {found}, expected {EXPECTED}")
    for split, some in names.items():
        if not some:
            raise UsageError(f"{folder}: no clips of split {split!r}; expected {EXPECTED}")
    listing = "\n".join(f"{split}/{name}" for split, some in names.items() for name in some)
    digest = sha256_of_bytes(os.fsencode(listing))
    return Source.of_files({"name": "something-something", "from": "clips on disk", "names": digest}, places, names)


def _numbers(path: Path) -> list[str]:
    """Return the ids of the clips in an official list."""
    try:
        found = [str(entry["id"]) for entry in json.loads(path.read_bytes())]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no list of clips with an id each ({error!r}): get the official file") from error
    odd = next((one for one in found if not one.isascii() or not one.isdigit()), None)
    if odd is not None or len(set(found)) < len(found):
        what = f"id {odd!r}" if odd is not None else "an id that is named twice"
        raise UsageError(f"{path}: {what}, expected numbers, each once: get the official file")
    return found


def write(
    folder: Path,
    source: Source,
    vae: FrozenVAE,
    skip: bool = False,
    shard_clips: int = SHARD_CLIPS,
    say: Callable[[str], None] = print,
    workers: int = 1,
) -> LatentManifest:
    """Write the latent of every frame of every clip, half precision, into shards of ``shard_clips`` clips.

    A shard holds its latents, then the clip of each, then its time.  ``write_decoded`` explains the other arguments and
    the errors.
    """
    arrays = {LATENTS: Array(LATENT, vae.shape), CLIP: Array(NUMBER), TIMES: Array(SECONDS)}
    settings = {
        **source.settings,
        "frame": {"size": vae.size, "resized": "bilinear with antialiasing, nothing cut off"},
        "encoder": vae.settings,
        "shard_clips": at_least("shard_clips", shard_clips),
        "arrays": {name: array.to_json() for name, array in arrays.items()},
    }

    def item(place: int, label: int | None, clip: Frames) -> tuple[bytes, bytes, bytes]:
        numbers = np.full(len(clip.times), place, NUMBER)
        return vae.encode(clip.pixels).tobytes(), numbers.tobytes(), clip.times.astype(SECONDS).tobytes()

    def pack(clips: list[tuple[bytes, bytes, bytes]]) -> tuple[bytes, dict[str, int]]:
        frames = sum(len(times) for _, _, times in clips) // SECONDS.itemsize
        content = b"".join(clip[array] for array in range(len(arrays)) for clip in clips)
        return content, {LATENTS: frames, CLIPS: len(clips)}

    shards = ShardFolder(folder, settings, LatentManifest, say)
    return write_decoded(shards, source, shard_clips, Resize(vae.size), item, pack, skip, workers)
