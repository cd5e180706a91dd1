"""Completion by means: what stands in the blank pixels, and what is measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.errors import UsageError
from paper_repro.base.identity import settings
from paper_repro.cells.tasks import FINISHED, Cell
from paper_repro.datamodules.image_sources import Faces
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.probes.image_floors import CompletionFloor, harmonic, mean_image, visible_mean
from paper_repro.tests.support.reports import Recorder

IMAGES = "paper_repro.datamodules.images"
SOURCE = {"_target_": "paper_repro.datamodules.image_sources.Faces", "size": 24}


def config(rule: str = "visible_mean", kind: str = "MaskedImageData", **data: Any) -> dict[str, Any]:
    task = {"_target_": "paper_repro.probes.image_floors.CompletionFloor", "rule": rule}
    masks = {"cell": 4} if kind == "MaskedImageData" else {}
    given = {"_target_": f"{IMAGES}.{kind}", "source": SOURCE, "batch_size": 16, **masks, **data}
    return {"task": task, "data": given, "model": {"width": 8}, "seed": 0}


def test_blank_pixels_get_a_mean_and_visible_ones_stay(tmp_path: Path) -> None:
    data = MaskedImageData(Faces(24), 4, batch_size=16)
    for rule in ("visible_mean", "mean_image"):
        (outcome,) = CompletionFloor(rule).run([Cell("cell", config(rule))], tmp_path, Recorder())
        assert outcome.status == FINISHED
        squares, count = 0.0, 0
        trained = torch.cat([data.train_batch(step)[1] for step in range(64)]).mean(0)  # (1, 24, 24)
        for masked, images in data.evaluation_batches("test"):
            for one, whole in zip(masked, images, strict=True):
                blank = one == 0
                filled = torch.where(blank, one[~blank].mean() if rule == "visible_mean" else trained, one)
                squares, count = squares + float((filled - whole).square().mean()), count + 1
        assert outcome.metrics["test_mse"] == pytest.approx(squares / count, rel=1e-5)
        errors = json.loads((tmp_path / "cell" / "completed.json").read_text())
        assert len(errors) == 16 and outcome.metrics["completed_mse"] == pytest.approx(sum(errors) / 16, rel=1e-3)
        assert {"images.png", "masked.png", "completed.png"} <= set(outcome.attachments)


def test_a_constant_image_is_completed_without_error() -> None:
    data = MaskedImageData(Faces(24), 4, batch_size=3)
    whole = torch.full((3, 1, 24, 24), 0.25)
    masked = whole * (~data.blank(data.train_batch(0)[0]))
    blank = data.blank(masked)
    torch.testing.assert_close(torch.where(blank, visible_mean(data, 1)(masked, blank), masked), whole)
    assert mean_image(data, 1)(masked, blank).shape == whole.shape


def test_a_harmonic_completion_is_the_mean_of_its_neighbours() -> None:
    """Each blank pixel is the mean of the neighbours that it has; a plane without slope at the edges stays as it is."""
    data = MaskedImageData(Faces(24), 4, batch_size=3)
    whole = data.train_batch(0)[1]  # (B, C, H, H)
    masked = whole * (~data.blank(data.train_batch(0)[0]))
    blank = data.blank(masked)
    found = torch.where(blank, harmonic(data, 1)(masked, blank), masked).double()
    ones = torch.ones(1, 1, *found.shape[-2:], dtype=torch.float64)
    plus = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.float64)[None, None]
    mean = torch.conv2d(found, plus, padding=1) / torch.conv2d(ones, plus, padding=1)
    torch.testing.assert_close(found[blank], mean[blank], atol=1e-6, rtol=0)
    visible = masked[~blank]
    assert visible.min() <= found.min() and found.max() <= visible.max()  # the maximum principle


def test_a_plane_with_its_border_visible_is_completed_without_error() -> None:
    data = MaskedImageData(Faces(24), 4, batch_size=1)
    whole = torch.linspace(-1, 1, 24).expand(1, 2, 24, 24).contiguous()
    blank = torch.zeros(1, 1, 24, 24, dtype=torch.bool)
    blank[..., 1:-1, 1:-1] = True
    torch.testing.assert_close(harmonic(data, 1)(whole * ~blank, blank), whole)
    torch.testing.assert_close(harmonic(data, 1)(whole, torch.zeros_like(blank)), whole)
    with pytest.raises(UsageError, match="without a visible pixel"):
        harmonic(data, 1)(whole, torch.ones_like(blank))


def test_nothing_but_the_data_is_read() -> None:
    assert settings(config()) == settings({**config(), "model": {"width": 16}})
    assert settings(config()) != settings(config(rule="mean_image"))
    with pytest.raises(UsageError, match="the data are ImageData"):
        CompletionFloor().run([Cell("cell", config(kind="ImageData"))], Path(), Recorder())
    with pytest.raises(ValueError, match="rule"):
        CompletionFloor("median")
