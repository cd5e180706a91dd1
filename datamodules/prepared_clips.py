"""Clips that ``scripts/prepare_data.py`` encoded: shards of latents, and Something-Something V2 as a source of windows.

A shard holds latents, then the clip of each, then its time.  Letters: F frames of a split, N clips, T frames of a
window, V numbers of a latent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import Array, Manifest, PreparedSource
from paper_repro.datamodules.video_sources import VideoSource, shown_at

LATENTS, CLIP, TIMES, CLIPS = "latents", "clip", "times", "clips"
"""The arrays: a frame's latent, the number of its clip in the split, its time in the clip; and the count of clips."""
LATENT, NUMBER, SECONDS = np.dtype("<f2"), np.dtype("<i4"), np.dtype("<f4")


def arrays_of(shape: tuple[int, ...]) -> dict[str, Array]:
    return {LATENTS: np.dtype((LATENT, shape)), CLIP: NUMBER, TIMES: SECONDS}


@dataclass(eq=False)
class PreparedClips(PreparedSource, VideoSource):
    """Latents of whole frames, as they were prepared.

    Args:
        files, prepare: see ``PreparedSource``.
        state_size: V, the numbers of a latent as it was prepared.
    """

    files: Mapping[str, str]
    prepare: str
    state_size: int = 3136

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("state_size", self.state_size)

    def check(self, manifest: Manifest) -> None:
        shape = manifest.arrays.get(LATENTS, LATENT).shape
        if manifest.arrays != arrays_of(shape) or prod(shape) != self.state_size:
            raise UsageError(
                f"{self.files['manifest']}: latents of {' x '.join(map(str, shape))}, expected {self.state_size:,} "
                f"numbers: prepare them with another --vae or --size, or give model.state_size {prod(shape)}"
            )

    @cached_property
    def starts(self) -> Mapping[str, NDArray[np.int64]]:
        """The first frame of each clip and the end of the last, (N + 1), by split."""
        numbers = {split: frames.whole(CLIP) for split, frames in self.stored.items()}  # (F)
        return {split: np.append(np.flatnonzero(np.diff(own, prepend=-1)), len(own)) for split, own in numbers.items()}

    @cached_property
    def times(self) -> Mapping[str, NDArray[np.float32]]:
        """When each frame of a split is shown, in seconds from the first one of its clip on, (F)."""
        return {split: frames.whole(TIMES) for split, frames in self.stored.items()}

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(starts) - 1 for split, starts in self.starts.items()}

    def duration(self, split: str, index: int) -> float:
        return float(self.times[split][self.starts[split][index + 1] - 1])

    def states(self, split: str, index: int, times: Sequence[float], draws: Sequence[float]) -> NDArray[np.float32]:
        first, end = self.starts[split][index : index + 2]
        frames = shown_at(self.times[split][first:end], times)
        latents = [self.stored[split].item(LATENTS, int(first + frame)).reshape(-1) for frame in frames]
        return np.stack(latents).astype(np.float32)
