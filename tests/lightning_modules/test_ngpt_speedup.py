"""nGPT's training step: golden records of the authors' optimiser step, and what the module asks of any optimiser."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cell
from paper_repro.lightning_modules.ngpt_speedup import NGPTSpeedup
from paper_repro.models.ngpt import NGPT, BaselineGPT
from paper_repro.tests.support import golden, golden_ngpt
from paper_repro.training.build import build, check_window
from paper_repro.training.fit import Fit
from paper_repro.training.optim import UnitAdamW, keep_unit_rows
from paper_repro.training.schedules import Constant

FILES = golden.files("ngpt", "*.npz")
SIZES = {"vocabulary_size": 13, "block_length": 9, "width": 12, "num_heads": 3, "num_layers": 2}


@pytest.mark.parametrize("make", [UnitAdamW, torch.optim.AdamW])
@pytest.mark.parametrize("path", FILES)
def test_golden_ngpt_training_steps(path: Path, make: Any) -> None:
    """Parameters after one clipped step with projection, and losses before it and after 1, 2 and 3 steps."""
    record = golden.read(path)
    meta, model = record["meta"], golden_ngpt.build(record)
    module = NGPTSpeedup(model, partial(make), Constant())
    options = {
        "lr": meta["lr"],
        "betas": tuple(meta["betas"]),
        "eps": meta["eps"],
        "weight_decay": meta["weight_decay"],
    }
    optimizer = make(module.parameter_groups(), **options)
    keep_unit_rows(optimizer)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = golden_ngpt.loss(model, record)
        loss.backward()
        losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), meta["grad_clip"])
        optimizer.step()
        if step == 0:
            expected = golden_ngpt.ours(record, "step1")
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(parameter.detach(), expected[name], rtol=0, atol=1e-9)
    losses.append(golden_ngpt.loss(model, record).detach())
    torch.testing.assert_close(torch.stack(losses), record["losses"], rtol=0, atol=1e-9)


def test_only_ngpts_matrices_are_to_be_unit() -> None:
    for model, unit in ((NGPT(**SIZES), True), (BaselineGPT(**SIZES), False)):
        matrices, others = NGPTSpeedup(model, partial(UnitAdamW), Constant()).parameter_groups()
        assert matrices["unit_rows"] is unit
        assert "unit_rows" not in others
        assert others["weight_decay"] == 0
        assert all(parameter.ndim == 2 for parameter in matrices["params"])
        assert all(parameter.ndim == 1 for parameter in others["params"])


def test_windows_that_the_model_cannot_see_are_refused_before_training(tmp_path: Path) -> None:
    sizes = ["model.width=8", "model.num_heads=2", "model.num_layers=1", "model.vocabulary_size=16"]
    config = compose("ngpt/speedup", [*sizes, "model.block_length=16", "data.window=17"])
    with pytest.raises(UsageError, match=r"data.window=17 is longer than the 16 tokens .*: give model.block_length=17"):
        Fit().run([Cell("cell", config)], tmp_path, lambda *_: None)
    check_window(build(Cell("cell", compose("ngpt/speedup", [*sizes, "model.block_length=17", "data.window=17"]))))
