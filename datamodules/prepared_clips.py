"""Clips that ``scripts/prepare_data.py`` encoded: latents of Something-Something V2, as a source of windows.

Letters: T frames of a window, V numbers of a latent.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.latent_shards import StoredClips
from paper_repro.datamodules.prepared_manifests import PreparedManifest
from paper_repro.datamodules.video_sources import VideoSource, shown_at


class PreparedClips(VideoSource):
    """Latents of whole frames, as they were prepared.

    Args:
        files, prepare: see ``PreparedManifest``.
        state_size: V, the numbers of a latent as it was prepared.

    Raises:
        ValueError: other files, or V below 1.
    """

    def __init__(self, files: Mapping[str, str], prepare: str, state_size: int = 3136) -> None:
        self.manifest = PreparedManifest(files, prepare)
        self._state_size = at_least("state_size", state_size)

    @property
    def state_size(self) -> int:
        return self._state_size

    @cached_property
    def stored(self) -> Mapping[str, StoredClips]:
        """The clips of each split, checked.

        Raises:
            UsageError: one is absent or not what the manifest says, a split has none, or latents have another size.
        """
        stamps = None if self.cache is None else self.cache / "clips"
        found = self.manifest.opened(
            self.data_root, lambda path: {split: StoredClips(path, split, stamps) for split in self.splits}
        )
        for clips in found.values():
            shape = clips.manifest.shape
            if int(np.prod(shape)) != self.state_size:
                sides = " x ".join(map(str, shape))
                raise UsageError(
                    f"{self.manifest.name}: latents of {sides}, expected {self.state_size:,} numbers: prepare them "
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
        return self.manifest.hashes(self.data_root)
