"""Encoded clips to latents: frames are decoded and resized by workers, and encoded by a frozen network here.

Letters: F frames of a clip, H side of a frame.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.files import sha256_of_bytes
from paper_repro.datamodules.array_shards import Array
from paper_repro.datamodules.array_writing import Part, ShardFolder, held, write_parts
from paper_repro.datamodules.encoded_files import Decoders, Named, UnfitError, decoders, encoded
from paper_repro.datamodules.encoded_images import first_of
from paper_repro.datamodules.frame_encoders import FrozenVAE
from paper_repro.datamodules.image_decoding import Pixels
from paper_repro.datamodules.image_shards import TEST, TRAIN
from paper_repro.datamodules.latent_shards import (
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


@dataclass(frozen=True)
class ClipFiles:
    """Encoded clips on disk, split."""

    settings: Mapping[str, Any]
    """What they are: the names alone, so that a clip may be mended."""
    paths: Mapping[str, Sequence[Path]]

    def read(self, split: str, places: range) -> Iterator[Named]:
        """Yield the name of each clip and what reads it."""
        for place in places:
            path = self.paths[split][place]
            yield f"{split}/{path.name}", partial(encoded, path)


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


def load(folder: Path) -> ClipFiles:
    """Return the clips of a folder.

    Raises:
        UsageError: it holds neither official lists nor folders of clips, a list is no such list, or a split is empty.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; --from takes {EXPECTED}")
    lists = {split: first_of(folder, names) for split, names in LABEL_FILES.items()}
    folders = {split: first_of(folder, names) for split, names in FOLDERS.items()}
    paths: dict[str, list[Path]] = {}
    if all(lists.values()):
        place = first_of(folder, CLIP_PLACES) or folder
        for split, path in lists.items():
            if path is not None:
                paths[split] = [place / f"{number}.webm" for number in _numbers(path)]
    elif all(folders.values()):
        for split, path in folders.items():
            if path is not None:
                paths[split] = sorted(one for one in path.iterdir() if one.suffix.lower() in SUFFIXES)
    else:
        found = ", ".join(str(path.relative_to(folder)) for path in lists.values() if path is not None) or "neither"
        raise UsageError(f"{folder}: found {found}, expected {EXPECTED}")
    for split, some in paths.items():
        if not some:
            raise UsageError(f"{folder}: no clips of split {split!r}; expected {EXPECTED}")
    listing = "\n".join(f"{split}/{path.name}" for split, some in paths.items() for path in some)
    names = sha256_of_bytes(os.fsencode(listing))
    return ClipFiles({"name": "something-something", "from": "clips on disk", "names": names}, paths)


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
    source: ClipFiles,
    vae: FrozenVAE,
    skip: bool = False,
    shard_clips: int = SHARD_CLIPS,
    say: Callable[[str], None] = print,
    workers: int = 1,
) -> LatentManifest:
    """Write the latent of every frame of every clip, half precision, into shards of ``shard_clips`` clips.

    Shards are written whole or not at all, and noted in ``progress.json``; the manifest comes last.  The same call goes
    on after a kill, and makes again what is missing, damaged or had clips left out.

    Args:
        folder: that of the shards.
        source: the clips.
        vae: the frozen encoder.
        skip: leave out clips that are unfit, and note them in the manifest; otherwise they are named when all have been
            looked at, and no manifest is written.
        shard_clips: clips of a shard.
        say: is told of each shard that is finished.
        workers: processes that decode; 1: this one alone.

    Raises:
        UsageError: unfit clips are refused, a split is left without any, the folder holds data of other settings, a
            worker was killed, or the disk is full.
    """
    arrays = {LATENTS: Array(LATENT, vae.shape), CLIP: Array(NUMBER), TIMES: Array(SECONDS)}
    settings = {
        **source.settings,
        "frame": {"size": vae.size, "resized": "bilinear with antialiasing, nothing cut off"},
        "encoder": vae.settings,
        "shard_clips": at_least("shard_clips", shard_clips),
        "arrays": {name: array.to_json() for name, array in arrays.items()},
    }
    counts = {split: len(paths) for split, paths in source.paths.items()}
    with held(folder), decoders(workers) as workers_of:
        part = partial(_part, source, vae, workers_of)
        return write_parts(ShardFolder(folder, settings, LatentManifest, say), counts, shard_clips, part, skip)


def _part(source: ClipFiles, vae: FrozenVAE, workers: Decoders, split: str, places: range) -> Part:
    """Return the frames of some clips of a split: latents, then the clip of each, then its time."""
    latents, numbers, times = bytearray(), list[NDArray[Any]](), list[NDArray[Any]]()
    unfit: dict[str, str] = {}
    for number, clip in zip(places, workers.decoded(source.read(split, places), Resize(vae.size)), strict=True):
        try:
            frames = clip.get()
        except UnfitError as error:
            unfit[clip.name] = str(error)
        else:
            latents += vae.encode(frames.pixels).tobytes()
            numbers.append(np.full(len(frames.times), number, NUMBER))
            times.append(frames.times.astype(SECONDS))
    content = bytes(latents) + b"".join(one.tobytes() for one in (*numbers, *times))
    return Part(content, {LATENTS: sum(map(len, times)), CLIPS: len(times)}, unfit)
