"""CET, section 4: completing masked faces by relaxation, learned by Equilibrium Propagation or backpropagation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.metrics.pooled import Largest, Mean, MeanSquaredError
from paper_repro.models.cet import (
    CET,
    CETClamped,
    CETState,
    Learned,
    Phases,
    cost,
    equilibrium_propagation,
    truncated_backpropagation,
)
from paper_repro.models.descent import Trajectory
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Schedule

Images = tuple[Tensor, Tensor]
EXACT = ("32-true", "64-true")
LEARNING: dict[str, Callable[[CET, Tensor, Tensor, Phases], Learned]] = {
    "ep": equilibrium_propagation,
    "tbpte": truncated_backpropagation,
}


class CETCelebA(PaperModule):
    """Gradients come from ``models.cet``, so the optimisation is manual: one batch a step, no clipping.

    The training loss is the mean squared error of the free state (of the last state for TBPTE), over all pixels, masked
    and visible.  For each split: ``mse``; ``energy``, the mean of the free state's; ``residual``, the largest change of
    a number in the last free step over the step size; and, with ``compare_batches``, ``cosine``, between the gradients
    of both ways to learn, the mean over that many batches.

    Args:
        method: "ep" or "tbpte".
        free_steps, nudged_steps, beta, step_size: see ``Phases``; evaluations relax for ``free_steps``.
        compare_batches: of every split, for the cosine; 0: none.

    Shape: masked images and images (B, C, H, H).
    """

    model: CET
    uncompilable = "CET's gradients come from no loss that could be compiled"

    def __init__(
        self,
        model: CET,
        optimizer: Callable[..., Optimizer],
        schedule: Schedule,
        method: str = "ep",
        free_steps: int = 150,
        nudged_steps: int = 5,
        beta: float = 0.01,
        step_size: float = 1.0,
        compare_batches: int = 0,
    ) -> None:
        super().__init__(model, optimizer, schedule)
        self.automatic_optimization = False
        self.method = one_of("method", method, LEARNING)
        self.phases = Phases(free_steps, nudged_steps, beta, step_size)
        self.compare_batches = at_least("compare_batches", compare_batches, 0)

    def loss(self, batch: Images) -> Tensor:
        raise UsageError("CET learns one model at a time, its gradients are no loss's: set machine.stack=null")

    def counted(self, batch: Images) -> Tensor:
        """Return the forward half of a training step: its T steps of B images, as one differentiable step of T B."""
        masked, images = batch  # (B, C, H, H)
        nudged = self.phases.nudged_steps * (2 if self.method == "ep" else 1)
        steps = self.phases.free_steps + nudged
        with torch.enable_grad():  # graphs on the meta device cost nothing; without, other products are taken
            clamped = self.model.clamp(masked)
            repeated = CETClamped(*(part.repeat(steps, 1, 1) for part in clamped))  # (T B, N, ...)
            state = self.model.step(self.model.first(repeated), repeated, self.phases.step_size)
        return cost(state, self.model.patches.blocks(images.repeat(steps, 1, 1, 1))).mean()

    def counted_step(self, batch: Images) -> None:
        """Do all that a step does for a batch: neither way to learn is a forward and a backward pass of one loss."""
        LEARNING[self.method](self.model, *batch, self.phases)

    def training_step(self, batch: Images, batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        if self.shares_rows and len(batch[0]) % self.trainer.world_size:
            many = f"machine.devices={self.trainer.world_size} cannot share {len(batch[0])} images evenly"
            raise UsageError(f"{many}, whose gradients CET averages: choose a divisor of data.batch_size")
        batch, _ = self.own_rows(batch, {}, {})
        learned = LEARNING[self.method](self.model, *batch, self.phases)
        loss = learned.cost.mean() / batch[1][0].numel()
        sums = [parameter.grad.sum() for parameter in self.model.parameters() if parameter.grad is not None]
        if not bool(torch.isfinite(torch.stack([loss, *sums])).all()):
            loss = torch.full_like(loss, torch.nan)
        self._average_over_devices()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule: Any = self.lr_schedulers()
        schedule.step()
        if self.logs_losses:
            self.log_dict({"train_loss": loss, "free_residual": _residual(learned.free).max()}, on_step=True)
        return loss

    def on_fit_start(self) -> None:
        if self.trainer.precision not in EXACT:
            raise UsageError(
                f"training.precision={self.trainer.precision}: CET's state has to stay float32; set 32-true, and "
                "model.precision=bfloat16 for narrower products"
            )

    def new_metrics(self) -> dict[str, Metric]:
        found: dict[str, Metric] = {"mse": MeanSquaredError(), "energy": Mean(), "residual": Largest()}
        return {**found, "cosine": Mean()} if self.compare_batches else found

    def update_metrics(self, metrics: dict[str, Metric], batch: Images) -> None:
        masked, images = batch
        clamped = self.model.clamp(masked)
        free = self.model.relax(self.model.first(clamped), clamped, self.phases.free_steps, self.phases.step_size)
        metrics["mse"].update(self.model.patches.images(free.state.y), images)
        metrics["energy"].update(self.model.energy(free.state, clamped))
        metrics["residual"].update(_residual(free))
        if self.compare_batches and metrics["cosine"].update_count < self.compare_batches:
            metrics["cosine"].update(self._cosine(batch))

    def _cosine(self, batch: Images) -> Tensor:
        found = []
        for learn in LEARNING.values():
            learn(self.model, *batch, self.phases)
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            found.append(torch.cat([gradient.flatten() for gradient in gradients]))
            self.model.zero_grad(set_to_none=True)
        return torch.cosine_similarity(found[0], found[1], dim=0)

    def _average_over_devices(self) -> None:
        if self.trainer.world_size > 1:
            for parameter in self.model.parameters():
                parameter.grad = self.trainer.strategy.reduce(parameter.grad, reduce_op="mean")


def _residual(free: Trajectory[CETState]) -> Tensor:
    """Give the residual of the last step, (B,)."""
    assert free.change is not None, "a relaxation measures its last step"
    return free.change
