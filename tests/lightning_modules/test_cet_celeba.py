"""CET's training: by both methods through Fit, one step by hand, resuming, metrics, and what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paper_repro.base.configs import compose
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import DIVERGED, FINISHED, Cell, Outcome
from paper_repro.datamodules.image_sources import Digits
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.lightning_modules.cet_celeba import LEARNING, CETCelebA
from paper_repro.models.cet import CET
from paper_repro.tests.support.reports import Recorder
from paper_repro.training import counting
from paper_repro.training.fit import Fit
from paper_repro.training.schedules import Constant

SIZES = {"channels": 1, "size": 8, "patch": 4, "stride": 2, "width": 12, "num_heads": 2, "head_width": 4}
DIGITS = (
    "data={_target_:paper_repro.datamodules.images.MaskedImageData,"
    "source:{_target_:paper_repro.datamodules.image_sources.Digits},cell:2,mask_ratio:0.5,batch_size:8,"
    "evaluation_batch_size:16,num_evaluation_images:24,seed:0,evaluation_seed:0}"
)
MODEL = [f"model.{name}={value}" for name, value in SIZES.items()]
SMALL = [DIGITS, *MODEL, "model.num_memories=16", "module.free_steps=6", "module.nudged_steps=3", "optimizer.lr=0.01"]


def cell(*overrides: str) -> Cell:
    quick = ["machine.progress_every_seconds=0.0", "training.steps=4"]
    return Cell("cell", compose("cet/celeba", [*SMALL, *quick, *overrides]))


def run(folder: Path, *overrides: str, stop_at: int | None = None) -> Outcome:
    (outcome,) = Fit().run([cell(*overrides)], folder, Recorder(stop_at))
    return outcome


@pytest.mark.parametrize("method", ["ep", "tbpte"])
def test_the_loss_falls_and_every_metric_of_each_split_is_there(method: str, tmp_path: Path) -> None:
    outcome = run(tmp_path, f"module.method={method}", "training.steps=40", "module.compare_batches=1")
    assert outcome.status == FINISHED
    names = {f"{split}_{name}" for split in ("train", "test") for name in ("mse", "energy", "residual", "cosine")}
    assert outcome.metrics.keys() == names
    losses = [value for _, value in outcome.curves["training_loss"]]
    assert losses[-1] < 0.8 * losses[0]
    assert outcome.metrics["test_cosine"] > 0.5  # both estimate one gradient; six steps do not quite converge


def module_of(method: str, **options: Any) -> CETCelebA:
    torch.manual_seed(0)
    model = CET(**SIZES, num_memories=16)  # type: ignore[arg-type]
    return CETCelebA(model, partial(torch.optim.AdamW, lr=0.01), Constant(), method, 6, 3, **options)


@pytest.mark.parametrize("method", ["ep", "tbpte"])
def test_a_run_is_the_optimiser_s_steps_on_the_method_s_gradients(method: str, tmp_path: Path) -> None:
    ours = cell(f"module.method={method}", "optimizer.weight_decay=0.0", "schedule.final_factor=1.0")
    Fit().run([ours], tmp_path, Recorder())
    from paper_repro.training.build import build

    parts = build(ours)
    optimizer = torch.optim.AdamW(parts.module.model.parameters(), lr=0.01, weight_decay=0.0)
    for step in range(4):
        LEARNING[method](parts.module.model, *parts.data.train_batch(step), parts.module.phases)
        optimizer.step()
        optimizer.zero_grad()
    found = load_file(tmp_path / "cell" / "weights.safetensors")
    for name, parameter in parts.module.model.named_parameters():
        # The same operations in the same order.
        torch.testing.assert_close(found[f"model.{name}"], parameter.detach(), rtol=1e-6, atol=1e-7)


def test_metrics_are_of_the_free_state_over_all_pixels() -> None:
    module = module_of("ep")
    data = MaskedImageData(Digits(), cell=2, batch_size=8, evaluation_batch_size=5, num_evaluation_images=8)
    found = module.evaluate(data)
    batches = list(data.evaluation_batches("test"))
    masked, images = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        clamped = module.model.clamp(masked)
        free = module.model.relax(module.model.first(clamped), clamped, 6)
        mse = (module.model.patches.images(free.state.y) - images).square().mean()
    # float32, over batches of another size
    assert found["test_mse"] == pytest.approx(float(mse), rel=1e-5)
    energy = module.model.energy(free.state, clamped).detach().mean()
    assert found["test_energy"] == pytest.approx(float(energy), rel=1e-4)
    assert found["test_residual"] == pytest.approx(float(free.change.max()), rel=1e-3)


@pytest.mark.parametrize("method", ["ep", "tbpte"])
def test_weights_that_overflow_are_a_divergence_with_its_step(method: str, tmp_path: Path) -> None:
    outcome = run(tmp_path, f"module.method={method}", "optimizer.lr=1e30")
    assert outcome.status == DIVERGED and "the loss was not finite at step 2 of 4" in outcome.note


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["machine.compile=true"], "machine.compile=false"),
        (["training.precision=bf16-mixed"], "model.precision=bfloat16"),
        (["module.method=eq"], "method"),
    ],
)
def test_what_cannot_be_trained_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path, *overrides)


@pytest.mark.parametrize(("method", "steps"), [("ep", 12), ("tbpte", 9)])
def test_the_multiply_adds_of_a_step_are_counted(method: str, steps: int) -> None:
    """With M memories, K R rows of heads and patches of P numbers of N tokens, per image and step."""
    found = counting.measure(cell(f"module.method={method}").config)
    tokens, width, rows, memories, numbers = 9, 12, 8, 16, 16
    own = tokens * width * (4 * rows + 2 * memories + 2 * numbers) + 4 * tokens**2 * rows
    encoder = tokens * width * numbers
    # Attention: scores once, and P K and P^T Q: three products of N^2 rows.
    assert found.multiply_adds == 8 * (steps * (own - tokens**2 * rows) + encoder)
    assert found.parameters == sum(p.numel() for p in CET(**SIZES, num_memories=16).parameters())  # type: ignore[arg-type]
