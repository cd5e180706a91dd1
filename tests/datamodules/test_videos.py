"""Clips: decoded with their times, cut into windows, and refused where they cannot be used."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paper_repro.base.errors import UsageError
from paper_repro.datamodules.pixels import UnfitError
from paper_repro.datamodules.video_sources import SampleClips, VideoSource, decode_clip, shown_at
from paper_repro.datamodules.videos import VideoData
from paper_repro.tests.support.prepared import clip_of, sound


def test_frames_are_found_by_their_times_also_at_a_varying_rate() -> None:
    clip = decode_clip(clip_of([10, 60, 110, 200], [0, 1, 4, 10]), shrink=8)
    assert clip.frames.shape == (4, 4, 4, 3)
    assert np.abs(clip.frames[:, 0, 0, 0].astype(int) - [10, 60, 110, 200]).max() <= 2
    assert np.allclose(clip.times, [0, 0.1, 0.4, 1.0], atol=2e-3)
    assert shown_at(clip.times, [0, 0.05, 0.3, 0.41, 0.9, 1.0, 7]) == [0, 0, 1, 2, 2, 3, 3]


def test_clips_that_cannot_be_used_say_why() -> None:
    whole = clip_of([0, 1, 2])
    for content, reason in ((whole[:300], "no frame|no whole clip"), (sound(), "no video stream")):
        with pytest.raises(UnfitError, match=reason):
            decode_clip(content)


class Counting(VideoSource):
    """The state of a frame is its clip and its time."""

    state_size = 2

    @property
    def counts(self) -> Mapping[str, int]:
        return {"train": 3, "test": 2}

    def duration(self, split: str, index: int) -> float:
        return [10.0, 2.0, 5.0][index]

    def states(self, split: str, index: int, times: Sequence[float], draws: Sequence[float]) -> NDArray[np.float32]:
        return np.array([[index, time] for time in times], np.float32)

    def data_hashes(self) -> dict[str, str]:
        return {}


def test_windows_are_evenly_spaced_and_follow_from_seed_and_step() -> None:
    settings: dict[str, Any] = {"num_frames": 5, "spacing": 1.0, "batch_size": 6, "num_evaluation_windows": 8}
    data = VideoData(Counting(), **settings)
    batch = data.train_batch(4)
    assert batch.shape == data.example_batch().shape == (6, 5, 2) and batch.dtype == torch.float32
    assert sorted(batch[:3, 0, 0].tolist()) == sorted(batch[3:, 0, 0].tolist()) == [0, 1, 2]
    for row in batch:
        clip, gaps = int(row[0, 0]), row[:, 1].diff()
        torch.testing.assert_close(gaps, torch.full((4,), 0.5 if clip == 1 else 1.0))
        assert row[0, 1] >= 0 and row[-1, 1] <= data.source.duration("train", clip) + 1e-6
    evaluated = torch.cat([*data.evaluation_batches("test")])
    assert evaluated.shape == (8, 5, 2) and evaluated[:, 0, 0].tolist() == [0, 1] * 4
    again = VideoData(Counting(), **{**settings, "batch_size": 3}, seed=5)
    assert torch.equal(evaluated, torch.cat([*again.evaluation_batches("test")]))


@pytest.mark.slow
def test_sample_clips_are_for_training_or_for_testing() -> None:
    source = SampleClips(size=8, shrink=16)
    assert source.counts == {"train": 2, "test": 1}
    assert source.clips["train"][0].frames.shape == (132, 45, 80, 1)
    assert source.clips["test"][0].frames.shape == (250, 17, 40, 1)
    assert source.duration("test", 0) == pytest.approx(9.96, abs=0.01)
    states = source.states("train", 0, [0.0, 1.0], (0.0, 0.99))
    assert states.shape == (2, 64) and states.dtype == np.float32 and np.abs(states).max() <= 1
    frame = source.clips["train"][0].frames[25, 0:8, -8:, 0].astype(np.float32)
    assert np.allclose(states[1].reshape(8, 8), frame / 127.5 - 1)
    assert set(source.data_hashes()) == {"train", "test"}
    with pytest.raises(UsageError, match="smaller size, or a smaller shrink"):
        _ = SampleClips(size=20, shrink=16).counts


@pytest.mark.slow
def test_training_squares_are_turned_and_tested_ones_are_not() -> None:
    plain, turned = SampleClips(8, 16), SampleClips(8, 16, turned=True)
    place = (0.3, 0.6)
    whole = plain.states("train", 0, [0.0, 1.0], [*place, 0.0]).reshape(2, 8, 8)
    found = {turned.states("train", 0, [0.0, 1.0], [*place, draw / 8]).tobytes() for draw in range(8)}
    expected = {
        np.ascontiguousarray(frames[:, ::down, ::across]).tobytes()
        for frames in (whole, whole.swapaxes(1, 2))
        for down in (1, -1)
        for across in (1, -1)
    }
    assert found == expected and len(found) == 8
    states = [source.states("test", 0, [0.5], [*place, 0.9]) for source in (plain, turned)]
    assert np.array_equal(*states)
