"""Clips that ``scripts/prepare_data.py`` encoded: shards of latents, and Something-Something V2 as a source of windows.

A shard holds latents, then the clip of each, then its time.  Letters: F frames of a split, N clips, T frames of a
window, V numbers of a latent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, DataFiles, Manifest, StoredArrays
from paper_repro.datamodules.video_sources import VideoSource, shown_at

LATENTS, CLIP, TIMES, CLIPS = "latents", "clip", "times", "clips"
"""The arrays: a frame's latent, the number of its clip in the split, its time in the clip; and the count of clips."""
LATENT, NUMBER, SECONDS = np.dtype("<f2"), np.dtype("<i4"), np.dtype("<f4")


def arrays_of(shape: tuple[int, ...]) -> dict[str, Array]:
    return {LATENTS: np.dtype((LATENT, shape)), CLIP: NUMBER, TIMES: SECONDS}


class StoredClips(StoredArrays):
    """The clips of one split, in the order of their source."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first frame of each clip and the end of the last, (N + 1)."""
        numbers = self.whole(CLIP)  # (F)
        return np.append(np.flatnonzero(np.diff(numbers, prepend=-1)), len(numbers))

    @cached_property
    def _times(self) -> NDArray[np.float32]:
        return self.whole(TIMES)

    def times(self, index: int) -> NDArray[np.float32]:
        """Return when each frame of a clip is shown, ascending, in seconds from the first one on."""
        return self._times[self.starts[index] : self.starts[index + 1]]

    def latents(self, index: int, frames: Sequence[int]) -> NDArray[np.float16]:
        """Return the latents of some frames of a clip, (frames, V)."""
        first = self.starts[index]
        return np.stack([self.item(LATENTS, int(first + frame)).reshape(-1) for frame in frames])


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
        self.found = DataFiles(self.files, self.prepare, "manifest")
        at_least("state_size", self.state_size)

    @cached_property
    def stored(self) -> Mapping[str, StoredClips]:
        """The clips of each split, checked; UsageError: absent or altered shards, or latents of another size."""
        path: Path = self.found.path("manifest", self.data_root)
        with self.found.mended():
            manifest = Manifest.read(path)
            stamps = self.cache and self.cache / "clips"
            found = {split: StoredClips.opened(manifest, path, split, stamps) for split in self.splits}
        shape = manifest.arrays.get(LATENTS, LATENT).shape
        if manifest.arrays != arrays_of(shape) or prod(shape) != self.state_size:
            raise UsageError(
                f"{self.files['manifest']}: latents of {' x '.join(map(str, shape))}, expected {self.state_size:,} "
                f"numbers: prepare them with another --vae or --size, or give model.state_size {prod(shape)}"
            )
        return found

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(clips.starts) - 1 for split, clips in self.stored.items()}

    def duration(self, split: str, index: int) -> float:
        return float(self.stored[split].times(index)[-1])

    def states(self, split: str, index: int, times: Sequence[float], draws: Sequence[float]) -> NDArray[np.float32]:
        clips = self.stored[split]
        return clips.latents(index, shown_at(clips.times(index), times)).astype(np.float32)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the manifest, which holds those of the files."""
        _ = self.counts
        return self.found.hashes(self.data_root)
