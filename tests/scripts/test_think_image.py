"""think.py with an EBT on images that the tests write: what it finds, draws and refuses."""

import csv
import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paper_repro.base.errors import run_main
from paper_repro.cells import records
from paper_repro.cells.records import Record
from paper_repro.cells.tasks import Cell
from paper_repro.datamodules.image_sources import Faces
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.models import ebt_image as diffusion
from paper_repro.models.cet import CET
from paper_repro.models.ebt import DIRECT, ThinkingSettings
from paper_repro.models.ebt_image import ImageEBT, denoised
from paper_repro.probes.thoughts import Manner, complete_image, read_image, think_of_image
from paper_repro.training import checkpoints
from paper_repro.training.build import build

SIZES: dict[str, Any] = {"image_size": 8, "patch": 4, "channels": 1, "width": 16, "num_heads": 2, "num_layers": 1}
CELL = "0123456789abcdef"
CONFIG: dict[str, Any] = {
    "module": {
        "_target_": "paper_repro.lightning_modules.ebt_denoising.EBTDenoising",
        "thinking": {"_target_": "paper_repro.models.ebt.ThinkingSettings", "num_steps": 1, "rule": "direct"},
    },
    "model": {"_target_": "paper_repro.models.ebt_image.ImageEBT", **SIZES, "step_size": 50.0},
    "data": {
        "_target_": "paper_repro.datamodules.images.ImageData",
        "source": {"_target_": "paper_repro.datamodules.image_sources.Digits"},
        "batch_size": 4,
    },
    "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.01},
    "schedule": {"_target_": "paper_repro.training.schedules.Constant"},
    "training": {"steps": 1},
    "seed": 0,
}


THINK = importlib.import_module("paper_repro.scripts.think")


def shaken(model: ImageEBT) -> ImageEBT:
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "step_size_parameter":
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image") / "cells" / CELL
    parts = build(Cell(CELL, {**CONFIG, "probes": {}, "machine": {}}))
    model = parts.module.model
    assert isinstance(model, ImageEBT)
    shaken(model)
    checkpoints.save_weights(folder / checkpoints.WEIGHTS, parts.module, CELL)
    records.write(folder / "record.json", Record(CELL, "finished", 0, CONFIG, {}, {}, 10, None, 1.0, None, "", {}))
    return folder


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    pixels = np.linspace(0, 255, 20 * 30 * 3).reshape(20, 30, 3).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photograph.png")
    return tmp_path / "photograph.png"


def run(*words: object) -> int:
    return run_main(THINK.main, [str(word) for word in words])


def test_an_image_is_noised_and_descends_as_in_evaluation() -> None:
    model = shaken(ImageEBT(**SIZES, step_size=50.0))
    image = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1
    settings = ThinkingSettings(rule=DIRECT, num_steps=1)
    found = think_of_image(model, image, 99, 3, Manner(settings=settings))
    noise = (found.found[0] - diffusion.signal(99) * image) / diffusion.noise_std(99)
    assert 0.7 < float(noise.std()) < 1.3
    for step, (expected, energy) in enumerate(denoised(model, found.found[:1], 3, settings)):
        assert torch.allclose(found.found[step], expected[0], atol=1e-6)
        assert found.energies[step] == pytest.approx(float(energy), rel=1e-5)
    error = ((found.found[3].clamp(-1, 1) - image) * 127.5).square().mean()
    assert found.psnr[3] == pytest.approx(10 * float((255**2 / error).log10()), abs=1e-3)
    assert found.pictures.shape == (5, 8, 8, 1) and 0 <= found.pictures.min() <= found.pictures.max() <= 1
    other = think_of_image(model, image, 99, 1, Manner(settings=settings, step_size=5.0))
    assert torch.equal(other.found[0], found.found[0]) and not torch.allclose(other.found[1], found.found[1])
    with pytest.raises(ValueError, match="one sample"):
        think_of_image(model, image, 99, 1, Manner(2, settings))


@torch.no_grad()
def test_cet_completes_a_masked_image_and_its_energy_falls() -> None:
    torch.manual_seed(0)
    model = CET(1, 12, 4, 4, width=16, num_heads=2, head_width=8, num_memories=8, start="drive")
    image = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(1)) * 2 - 1
    data = MaskedImageData(source=Faces(size=12), batch_size=1, cell=3)
    masked = data.masked(image[None], torch.Generator().manual_seed(0))[0]
    found = complete_image(model, image, masked, num_steps=4, step_size=0.5)
    assert torch.equal(found.found[0], masked)
    cells = (masked == 0).view(4, 3, 4, 3).permute(0, 2, 1, 3).reshape(16, 9)
    assert cells.all(1).sum() == 8 and cells.any(1).sum() == 8, "half of the cells, each of them whole"
    assert torch.equal(masked[masked != 0], image[masked != 0])
    clamped = model.clamp(masked[None])
    state = model.first(clamped)
    for step in range(5):
        assert found.energies[step] == pytest.approx(float(model.energy(state, clamped)), rel=1e-4)
        if step:
            assert torch.allclose(found.found[step], model.patches.images(state.y)[0], atol=1e-5)
        state = model.step(state, clamped, 0.5)
    assert all(after < before for before, after in itertools.pairwise(found.energies))
    error = ((masked - image) * 127.5).square().mean()
    assert found.psnr[0] == pytest.approx(10 * float((255**2 / error).log10()), abs=0.05)


def test_the_square_of_a_file_becomes_what_the_model_reads(photograph: Path) -> None:
    image = read_image(photograph, 8, 1)
    assert image.shape == (1, 8, 8) and -1 <= float(image.min()) < float(image.max()) <= 1


def test_steps_are_printed_and_drawn(cell: Path, photograph: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(cell, "--image", photograph, "--steps", "2", "--time", "199", "--out", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "t = 199" in lines[0] and [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
    with (tmp_path / "out" / "energies" / "figure.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2"] and float(rows[0]["psnr"]) < 20
    assert (tmp_path / "out" / "energies" / "figure.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a"], "this EBT was trained on images: give --image FILE"),
        (["--image", "absent.png"], "--image absent.png"),
        (["--image", "/dev/zero"], "--image /dev/zero"),
        (["--image", "PHOTOGRAPH", "--time", "1000"], "time must lie in 0 ... 999"),
        (["--image", "PHOTOGRAPH", "--samples", "2"], "one sample"),
        (["--image", "PHOTOGRAPH", "--noise", "1"], "no noise in its steps"),
        (["--image", "PHOTOGRAPH", "--tokens", "3"], "--tokens: --image has none"),
        (["--image", "PHOTOGRAPH", "--board", "1"], "give one of --prompt TEXT, --board DIGITS, --image FILE"),
        (["--prompt", "a", "--time", "9"], "--time: --prompt has none"),
    ],
)
def test_wrong_words(cell: Path, photograph: Path, capsys: Any, words: list[str], message: str) -> None:
    assert run(cell, *(str(photograph) if word == "PHOTOGRAPH" else word for word in words)) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and found.out == ""
