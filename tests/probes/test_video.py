"""Floors on video, energies by frame, and what a training step on frames costs."""

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional

from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.video_sources import SampleClips
from paper_repro.datamodules.videos import VideoData
from paper_repro.lightning_modules.ebt_video import EBTVideo
from paper_repro.models.ebt import DIRECT, LatentEBT, ThinkingSettings
from paper_repro.probes import floors
from paper_repro.probes.floors import VideoFloor, linear_frame
from paper_repro.probes.frame_energies import FrameEnergies
from paper_repro.tests.support.reports import Recorder
from paper_repro.training.schedules import Constant

SIZES: dict[str, Any] = {"state_size": 16, "block_length": 5, "width": 8, "num_heads": 2, "num_layers": 1}
OPTIMIZER = partial(torch.optim.AdamW, lr=0.01)
CLIPS = "paper_repro.datamodules.video_sources.SampleClips"
SECTION: dict[str, Any] = {
    "_target_": "paper_repro.datamodules.videos.VideoData",
    "source": {"_target_": CLIPS, "size": 4, "shrink": 8},
    "num_frames": 6,
    "batch_size": 8,
    "num_evaluation_windows": 20,
}


def data() -> VideoData:
    return VideoData(SampleClips(4, 8), num_frames=6, batch_size=8, num_evaluation_windows=20)


def module() -> EBTVideo:
    torch.manual_seed(0)
    model = LatentEBT(**SIZES, step_size=5.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return EBTVideo(model, OPTIMIZER, Constant(), ThinkingSettings(rule=DIRECT, num_steps=2))


def floor(rule: str) -> dict[str, float]:
    (outcome,) = VideoFloor(rule).run([Cell("cell", {"data": SECTION, "seed": 0})], Path(), Recorder())
    return dict(outcome.metrics)


@pytest.mark.slow
def test_the_last_frame_is_the_loss_of_a_clip_that_moves_and_a_linear_map_is_better_where_it_was_fitted(monkeypatch):
    monkeypatch.setattr(floors, "NUM_BATCHES", 16)
    clips = data()
    windows = torch.cat([*clips.evaluation_batches("test")])
    expected = float(functional.smooth_l1_loss(windows[:, :-1], windows[:, 1:]))
    assert floor("last_frame")["test_loss"] == pytest.approx(expected, rel=1e-5)
    first = [clips.train_batch(step) for step in range(16)]
    predict = linear_frame(clips)
    fitted, kept = (
        sum(float((guess(batch[:, :-1]) - batch[:, 1:]).square().sum()) for batch in first)
        for guess in (predict, lambda frames: frames)
    )
    assert fitted < kept
    assert floor("linear")["test_loss"] > 0


@pytest.mark.slow
def test_energies_of_frames_are_those_of_the_module() -> None:
    own = module()
    found = FrameEnergies(12).measure(own, data(), 0)
    rows = list(csv.DictReader(io.StringIO(found.attachments["frames.csv"].decode())))
    assert [(row["kind"], int(row["frame"])) for row in rows[:6]] == [
        *(("goes_on", n) for n in range(2, 7)),
        ("still", 2),
    ]
    windows = torch.cat([*data().evaluation_batches("test")])[:12]
    torch.manual_seed(0)
    last = own.predicted(windows[:, :-1])[-1]
    for row, energy in zip(rows, last.energies[0].mean(0).tolist(), strict=False):
        assert float(row["energy"]) == pytest.approx(energy, rel=1e-5)
    energies = {
        kind: [float(row["energy"]) for row in rows if row["kind"] == kind] for kind in ("goes_on", "still", "cut")
    }
    assert found.metrics["cut_rise"] == pytest.approx(energies["cut"][3] - energies["goes_on"][3], abs=1e-5)
    assert found.metrics["still_fall"] == pytest.approx(energies["goes_on"][-1] - energies["still"][-1], abs=1e-5)
    assert energies["cut"][:3] == pytest.approx(energies["goes_on"][:3], rel=1e-5)  # the cut is not seen yet
    assert -1 <= found.metrics["energy_rank"] <= 1
    assert Image.open(io.BytesIO(found.attachments["cut.png"])).size == (24, 4)
