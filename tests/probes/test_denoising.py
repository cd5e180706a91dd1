"""Denoising measured over forward passes, its floors, and linear probes."""

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.image_sources import Digits, Photographs
from paper_repro.datamodules.images import ImageData
from paper_repro.lightning_modules.ebt_denoising import DiffusionDenoising, EBTDenoising
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.ebt import DIRECT, ThinkingSettings
from paper_repro.models.ebt_image import DiT, ImageEBT, denoised
from paper_repro.probes.attachments import png
from paper_repro.probes.denoising import (
    LEVELS,
    Denoising,
    LinearProbe,
    LinearProbeFloor,
    noised_batches,
)
from paper_repro.probes.image_floors import DenoisingFloor
from paper_repro.tests.support.reports import Recorder
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Constant

SIZES: dict[str, Any] = {"image_size": 8, "patch": 4, "channels": 1, "width": 8, "num_heads": 2, "num_layers": 1}
OPTIMIZER = partial(torch.optim.AdamW, lr=0.01)
PROBE = Denoising({"in": 9, "out": 19}, {"in": 1, "out": 3}, most_passes=2, steps=(1, 2, 15))
SOURCE = "paper_repro.datamodules.image_sources."


def data(**settings: Any) -> ImageData:
    return ImageData(Digits(), **{"batch_size": 5, "num_evaluation_images": 12, **settings})


def module(kind: str, steps: int = 1) -> PaperModule:
    torch.manual_seed(0)
    if kind == "dit":
        return DiffusionDenoising(DiT(**SIZES), OPTIMIZER, Constant(), time=9)
    model = ImageEBT(**SIZES, step_size=3.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return EBTDenoising(model, OPTIMIZER, Constant(), ThinkingSettings(rule=DIRECT, num_steps=steps), time=9)


def rows_of(found: Any) -> dict[tuple[str, int, int], dict[str, str]]:
    rows = csv.DictReader(io.StringIO(found.attachments["denoising.csv"].decode()))
    return {(row["level"], int(row["steps"]), int(row["passes"])): row for row in rows}


@pytest.mark.parametrize("steps", [1, 2])
def test_ebt_is_measured_after_each_pass(steps: int) -> None:
    own = module("ebt", steps)
    found = PROBE.measure(own, data(), 0)
    rows = rows_of(found)
    assert [*rows] == [("in", steps, 1), ("in", steps, 2), ("out", steps, 1), ("out", steps, 2), ("out", steps, 3)]
    assert found.metrics["in_nfe"] == steps and found.metrics["out_nfe"] == 3 * steps
    assert float(rows["out", steps, 3]["psnr"]) == pytest.approx(found.metrics["out_psnr"], rel=1e-6)
    images, errors = [], []
    for whole, noised in noised_batches(data(), 19):
        *_, (last, _) = denoised(own.model, noised, 3 * steps)
        images.append(last)
        errors.append(((last.clamp(-1, 1) - whole) * 127.5).square())
    mse = float(torch.cat(errors).mean())
    assert found.metrics["out_mse"] == pytest.approx(mse, rel=1e-4)
    strips = {f"{level}_{what}.png" for level in LEVELS for what in ("noised", "found")}
    assert set(found.attachments) == {"denoising.csv", "original.png", *strips}
    assert found.attachments["out_found.png"] == png(images[0])


def test_diffusion_is_measured_at_full_length_and_at_equal_evaluations() -> None:
    own = module("dit")
    found = PROBE.measure(own, data(), 0)
    rows = rows_of(found)
    assert {("in", 10, 1), ("in", 10, 2), ("in", 1, 1), ("in", 2, 1), ("out", 20, 3), ("out", 15, 1)} <= set(rows)
    assert ("in", 15, 1) not in rows and all(row["energy"] == "" for row in rows.values())
    assert found.metrics["in_nfe"] == 10 and found.metrics["out_nfe"] == 60
    assert found.metrics["in_psnr_equal"] == pytest.approx(float(rows["in", 1, 1]["psnr"]), rel=1e-6)
    assert found.metrics["out_psnr_equal"] == pytest.approx(float(rows["out", 3, 1]["psnr"]), rel=1e-6)
    assert found.metrics["out_psnr_double"] == pytest.approx(float(rows["out", 6, 1]["psnr"]), rel=1e-6)


def floor(rule: str, folder: Path) -> dict[str, float]:
    section = {
        "_target_": "paper_repro.datamodules.images.ImageData",
        "source": {"_target_": f"{SOURCE}Photographs", "size": 16, "shrink": 4},
        "batch_size": 32,
        "num_evaluation_images": 32,
    }
    (outcome,) = DenoisingFloor(rule).run([Cell("cell", {"data": section, "seed": 0})], folder, Recorder())
    for level in LEVELS:
        content = (folder / "cell" / f"{level}_found.png").read_bytes()
        assert sha256_of_bytes(content) == outcome.attachments[f"{level}_found.png"]
        assert Image.open(io.BytesIO(content)).size == (128, 16)
    return dict(outcome.metrics)


@pytest.mark.slow
def test_filters_are_better_than_what_is_noised(tmp_path: Path) -> None:
    found = {rule: floor(rule, tmp_path / rule) for rule in ("noised", "wiener", "total_variation")}
    for level in ("in", "out"):
        psnr = {rule: metrics[f"{level}_psnr"] for rule, metrics in found.items()}
        assert psnr["wiener"] > psnr["noised"] + 4 and psnr["total_variation"] > psnr["noised"] + 4
    assert found["wiener"]["in_psnr"] > found["wiener"]["out_psnr"]
    # What is noised differs from the image by the noise and by the signal that is lost; most of it lies in the range.
    images = torch.cat([*ImageData(Photographs(16, 4), num_evaluation_images=32).evaluation_batches("test")])
    power = float(images.square().mean()) * (1 - diffusion.signal(99)) ** 2 + diffusion.noise_std(99) ** 2
    assert found["noised"]["in_psnr"] == pytest.approx(10 * torch.tensor(4 / power).log10().item(), abs=1.0)


def test_a_linear_probe_reads_features_and_floors_read_pixels_or_nothing() -> None:
    labelled = ImageData(Digits(), batch_size=256, num_evaluation_images=600, labelled=True)
    own = module("ebt")
    before = {name: value.clone() for name, value in own.state_dict().items()}
    with torch.no_grad():  # as probes are run
        found = LinearProbe(labelled).measure(own, data(), 0).metrics
    assert set(found) == {"top_1", "top_5"} and found["top_1"] > 0.2 and found["top_5"] > found["top_1"]
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    assert LinearProbe(labelled).measure(own, data(), 0).metrics == found
    floors = {}
    for rule in ("pixels", "chance"):
        task = LinearProbeFloor(ImageData(Digits(), batch_size=256, labelled=True), rule)
        (outcome,) = task.run([Cell("cell", {"seed": 0})], Path(), Recorder())
        floors[rule] = outcome.metrics
    assert floors["pixels"]["top_1"] > 0.85
    assert 0.05 < floors["chance"]["top_1"] < 0.15 and 0.4 < floors["chance"]["top_5"] < 0.6


def test_probes_refuse_images_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="plain images"):
        PROBE.measure(module("ebt"), data(labelled=True), 0)
    with pytest.raises(UsageError, match="labelled=true"):
        LinearProbe(data()).measure(module("ebt"), data(), 0)
    large = ImageEBT(**{**SIZES, "image_size": 12})
    other = EBTDenoising(large, OPTIMIZER, Constant(), ThinkingSettings(rule=DIRECT, num_steps=1))
    with pytest.raises(UsageError, match="multiple"):
        LinearProbe(data(labelled=True)).measure(other, data(), 0)
