"""Encoded clips to latents: frames are decoded and resized by workers, and encoded here by a frozen autoencoder.

Letters: F frames, H side of a frame, C channels and S side of a latent.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import ShardFolder
from paper_repro.datamodules.encoded_files import Source, first_of, hash_of_names, write_decoded
from paper_repro.datamodules.image_sources import TEST, TRAIN
from paper_repro.datamodules.pixels import Pixels
from paper_repro.datamodules.prepared_clips import CLIPS, LATENT, LATENTS, NUMBER, SECONDS, LatentManifest, arrays_of
from paper_repro.datamodules.video_sources import Clip, decode_clip

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
BATCH = 32
"""Frames that are encoded at a time."""


class FrozenVAE:
    """Encodes frames as the mean of an AutoencoderKL's posterior, as EBT's code does for appendix D.2: not scaled.

    Args:
        vae: a diffusers AutoencoderKL.
        size: H.

    Raises:
        UsageError: the network cannot encode a frame of this size.
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
        """All that a latent depends on, beside the frame."""
        digest = sha256()
        for name, tensor in sorted(self.vae.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.float().cpu().numpy().tobytes())
        return {"weights": digest.hexdigest(), "latent": "mean, not scaled", "pixels": "-1 to 1"}

    @torch.no_grad()
    def encode(self, frames: Pixels) -> NDArray[np.float16]:
        """Return the latents of frames (F, H, H, 3), (F, C, S, S)."""
        found = []
        for first in range(0, len(frames), BATCH):
            some = torch.from_numpy(np.array(frames[first : first + BATCH])).to(self.device)
            pixels = some.permute(0, 3, 1, 2).float() / 127.5 - 1  # (F, 3, H, H)
            found.append(self.vae.encode(pixels).latent_dist.mean.cpu())  # type: ignore[operator]
        return torch.cat(found).numpy().astype(LATENT)


def load_vae(name: str, size: int, download: bool) -> FrozenVAE:
    """Return the autoencoder of a folder that diffusers saved, or of the hub.

    Args:
        name: the folder, or the name on the hub.
        size: the side of the frames.
        download: whether the hub may be asked; otherwise only what was fetched before is used.

    Raises:
        UsageError: diffusers is not installed, or there is no such autoencoder.
    """
    try:
        from diffusers import AutoencoderKL
    except ImportError as error:
        raise UsageError("latents are made by diffusers: run: pip install diffusers") from error
    path = Path(name).expanduser()
    local = path.is_dir()
    settings: dict[str, Any] = {"local_files_only": local or not download, "low_cpu_mem_usage": False}
    try:
        vae = AutoencoderKL.from_pretrained(str(path) if local else name, **settings)
    except Exception as error:  # whatever the hub's client, the reader of weights or a wrong config raises
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"--vae {name}: no autoencoder of diffusers could be read ({reason}): give the folder of one, or its name "
            "on the hub and --download"
        ) from error
    return FrozenVAE(vae, size)


@dataclass(frozen=True)
class Resize:
    """Every frame of an encoded clip at ``size`` x ``size``, nothing cut off; it is sent to other processes."""

    size: int

    def __call__(self, content: bytes) -> Clip:
        return decode_clip(content, size=self.size)


def load(folder: Path) -> Source:
    """Return the clips of a folder; UsageError: it holds neither official lists nor folders of clips, a list is no such
    list, or a split is empty.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; --from takes {EXPECTED}")
    found = {split: first_of(folder, names) for split, names in LABEL_FILES.items()}
    lists = {split: path for split, path in found.items() if path is not None}
    inside = {split: first_of(folder, names) for split, names in FOLDERS.items()}
    places = {split: path for split, path in inside.items() if path is not None}
    if len(lists) == len(LABEL_FILES):
        places = dict.fromkeys(lists, first_of(folder, CLIP_PLACES) or folder)
        names = {split: [f"{number}.webm" for number in _numbers(path)] for split, path in lists.items()}
    elif len(places) == len(FOLDERS):
        names = {
            split: sorted(one.name for one in path.iterdir() if one.suffix.lower() in SUFFIXES)
            for split, path in places.items()
        }
    else:
        listed = ", ".join(str(path.relative_to(folder)) for path in lists.values()) or "neither"
        raise UsageError(f"{folder}: found {listed}, expected {EXPECTED}")
    for split, some in names.items():
        if not some:
            raise UsageError(f"{folder}: no clips of split {split!r}; expected {EXPECTED}")
    settings = {"name": "something-something", "from": "clips on disk", "names": hash_of_names(names)}
    return Source.of_files(settings, places, names)


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
    arrays = arrays_of(vae.shape)
    settings = {
        **source.settings,
        "frame": {"size": vae.size, "resized": "bilinear with antialiasing, nothing cut off"},
        "encoder": vae.settings,
        "shard_clips": at_least("shard_clips", shard_clips),
        "arrays": {name: array.to_json() for name, array in arrays.items()},
    }

    def item(place: int, label: int | None, clip: Clip) -> tuple[bytes, bytes, bytes]:
        numbers = np.full(len(clip.times), place, NUMBER)
        return vae.encode(clip.frames).tobytes(), numbers.tobytes(), clip.times.astype(SECONDS).tobytes()

    def pack(clips: list[tuple[bytes, bytes, bytes]]) -> tuple[bytes, dict[str, int]]:
        frames = sum(len(times) for _, _, times in clips) // SECONDS.itemsize
        content = b"".join(clip[array] for array in range(len(arrays)) for clip in clips)
        return content, {LATENTS: frames, CLIPS: len(clips)}

    shards = ShardFolder(folder, settings, LatentManifest, say)
    return write_decoded(shards, source, shard_clips, Resize(vae.size), item, pack, skip, workers)
