"""Clips that ``scripts/prepare_data.py`` encoded: shards of latents, and Something-Something V2 as a source of windows.

A shard holds latents, then the clip of each, then its time.  Letters: F frames of a split, N clips, T frames of a
window, V numbers of a latent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, DataFiles, Manifest, StoredArrays
from paper_repro.datamodules.video_sources import VideoSource, shown_at

LATENTS, CLIP, TIMES = "latents", "clip", "times"
"""Names of the arrays: a frame's latent, the number of its clip in the split, its time since the clip's first frame."""
CLIPS = "clips"
"""The name of the count of clips; clips that were left out have a number, but no frames."""
LATENT, NUMBER, SECONDS = np.dtype("<f2"), np.dtype("<i4"), np.dtype("<f4")


def arrays_of(shape: tuple[int, ...]) -> dict[str, Array]:
    """Return the arrays of a shard of latents of a shape."""
    return {LATENTS: Array(LATENT, shape), CLIP: Array(NUMBER), TIMES: Array(SECONDS)}


class LatentManifest(Manifest):
    """What a folder of latents holds."""

    kind: ClassVar[str] = "clips"

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of each latent."""
        return self.arrays[LATENTS].shape

    def check_settings(self) -> None:
        super().check_settings()
        if len(self.shape) != 3 or [*self.arrays.items()] != [*arrays_of(self.shape).items()]:
            raise ValueError(f"arrays {', '.join(self.arrays)}")
        for shard in self.shards:
            _ = shard.counts[CLIPS]


class StoredClips:
    """Clips that were prepared: of one split, checked, in the order of their source.

    Args:
        path: the manifest.
        split: it must have a clip.
        stamps: the folder that remembers which files were checked; None: they are checked once a process.

    Raises:
        UsageError: the manifest or a file is missing or not what it must be, or the split has no clips.
    """

    def __init__(self, path: Path, split: str, stamps: Path | None = None) -> None:
        self.manifest = LatentManifest.read(path)
        self._arrays = StoredArrays.opened(self.manifest, path, split, stamps)
        numbers, self._times = self._arrays.whole(CLIP), self._arrays.whole(TIMES)  # (F), (F)
        self._starts = np.flatnonzero(np.diff(numbers, prepend=-1))  # (N)
        self._ends = np.append(self._starts[1:], len(numbers))  # (N)

    def __len__(self) -> int:
        return len(self._starts)

    def times(self, index: int) -> NDArray[np.float32]:
        """Return when each frame of a clip is shown, ascending, in seconds from the first one on."""
        return self._times[self._starts[index] : self._ends[index]]

    def latents(self, index: int, frames: Sequence[int]) -> NDArray[np.float16]:
        """Return the latents of some frames of a clip, (frames, V)."""
        first = self._starts[index]
        return np.stack([self._arrays.item(LATENTS, int(first + frame)).reshape(-1) for frame in frames])


@dataclass(eq=False)
class PreparedClips(VideoSource):
    """Latents of whole frames, as they were prepared.

    Args:
        files: ``{manifest: PATH}``.
        prepare: the command that makes it, named where it is absent or wrong.
        state_size: V, the numbers of a latent as it was prepared.
    """

    files: Mapping[str, str]
    prepare: str
    state_size: int = 3136

    def __post_init__(self) -> None:
        self.found = DataFiles(self.files, self.prepare, ["manifest"])
        at_least("state_size", self.state_size)

    @cached_property
    def stored(self) -> Mapping[str, StoredClips]:
        """The clips of each split, checked; UsageError: one is absent or not what the manifest says, a split has none,
        or latents have another size.
        """
        path, stamps = self.found.path("manifest", self.data_root), self.cache and self.cache / "clips"
        with self.found.mended():
            found = {split: StoredClips(path, split, stamps) for split in self.splits}
        shape = found[self.splits[0]].manifest.shape
        if int(np.prod(shape)) != self.state_size:
            sides = " x ".join(map(str, shape))
            raise UsageError(
                f"{self.files['manifest']}: latents of {sides}, expected {self.state_size:,} numbers: prepare them "
                f"with another --vae or --size, or give model.state_size {np.prod(shape)}"
            )
        return found

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(clips) for split, clips in self.stored.items()}

    def duration(self, split: str, index: int) -> float:
        return float(self.stored[split].times(index)[-1])

    def states(self, split: str, index: int, times: Sequence[float], draws: Sequence[float]) -> NDArray[np.float32]:
        clips = self.stored[split]
        return clips.latents(index, shown_at(clips.times(index), times)).astype(np.float32)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return self.found.hashes(self.data_root)
