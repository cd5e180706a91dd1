"""The LightningModule that every experiment builds on: one loss, metrics per split, an optimiser and a schedule."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities import GradClipAlgorithmType
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError
from paper_repro.base.identity import mix
from paper_repro.datamodules.counter_based import Batch, CounterBasedDataModule
from paper_repro.training.optim import keep_unit_rows
from paper_repro.training.schedules import Schedule
from paper_repro.training.steps import (
    Compute,
    Graphs,
    Step,
    Tree,
    gradients_of,
    in_micro_batches,
    rows_of,
    rows_of_draw,
    shares,
    with_gradients,
)
from paper_repro.training.tensors import Distribution, draw, map_tensors, place, tensors_of

Draws = dict[str, Any]
"""Random tensors by name; for a compiled step, single whole numbers are plain ones."""
EAGER_RANDOM: dict[str, str | int | bool | Callable[..., Any]] = {"fallback_random": True}
"""A compiled loss draws the random numbers that an uncompiled one draws."""


class TargetWeights:
    """Makes a step's gradient that of the mean over all targets of all its batches on all devices.

    Each loss is multiplied by its number of targets over that of the step's first batch (the largest of all devices),
    and the gradients, before they are clipped, by ``correction``, which makes the mean weight 1.  Where all numbers are
    equal both are exactly 1.
    """

    def __init__(self) -> None:
        self.correction = 1.0
        self._targets: list[Tensor] = []
        self._unit = torch.ones(())

    def weight(self, targets: Tensor, trainer: L.Trainer, first: bool) -> Tensor | None:
        """Return the weight of a batch's loss, float64, (); None: its step has no other.  ``first``: in its step."""
        if first:
            self._targets.clear()
        self._targets.append(targets)
        if _batches(trainer) == 1:
            return None
        if first:
            self._unit = _over_devices(trainer, targets, dist.ReduceOp.MAX).clamp(min=1)
        return targets.double() / self._unit

    def correct(self, optimizer: Optimizer, trainer: L.Trainer) -> None:
        """Multiply the gradients of a step by ``correction``."""
        self.correction = 1.0
        if self._targets and _batches(trainer) > 1:
            total = _over_devices(trainer, torch.stack(self._targets).sum(), dist.ReduceOp.SUM)
            self.correction = float(_batches(trainer) * self._unit.double() / total.clamp(min=1))
        self._targets.clear()
        for group in optimizer.param_groups if self.correction != 1 else ():
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(self.correction)


def _batches(trainer: L.Trainer) -> int:
    return trainer.accumulate_grad_batches * trainer.world_size


def _over_devices(trainer: L.Trainer, count: Tensor, operation: Any) -> Tensor:
    if trainer.world_size == 1:
        return count
    found = count.clone()
    dist.all_reduce(found, operation)
    return found


class PaperModule(L.LightningModule):
    """A model, its loss, and its metrics on each split.

    A subclass writes ``new_metrics``, ``update_metrics`` and ``loss``, or, if its training step needs random tensors or
    tensors that live between steps, ``loss_and_carry`` with ``random_tensors`` and ``initial_carry``.  The loss has no
    side effects: a stack computes it for many models at once under ``vmap``.

    Args:
        model: an nn.Module.
        optimizer: called with the parameter groups, for example ``partial(AdamW, lr=0.005)``.
        schedule: of all groups that bring none of their own.

    Each of the three may be given as its section of a config, as ``load_from_checkpoint`` does.

    The number of a batch within its optimiser step is its slot.  Before each batch torch's global generator is seeded
    with ``mix(seed, "step", step)``, for slot k > 0 with ``mix(seed, "step", step, k)``, so that dropout is the same in
    a resumed run, whichever device computes the batch.  Where devices share its rows, rank r > 0 has a seed of its own.
    """

    seed: int = 0
    constants: ClassVar[frozenset[str]] = frozenset()
    """Draws of one whole number that a compiled step takes as a plain number, so that it may branch on it."""
    uncompilable: ClassVar[str] = ""
    """Why no loss of this module can be compiled; nothing if one can."""

    logs_losses: bool = True
    """Whether each training step logs ``train_loss``."""

    def __init__(self, model: nn.Module, optimizer: Callable[..., Optimizer], schedule: Schedule) -> None:
        super().__init__()
        self.model: Any = _built(model)
        self.optimizer: Callable[..., Optimizer] = _built(optimizer)
        self.schedule: Schedule = _built(schedule)
        self.carries: dict[int, Tree] = {}
        """The carry of each slot that this process computes, while it trains."""
        self.weights = TargetWeights()
        self.shares_rows = False
        """Whether each device computes some rows of every batch, and not some batches whole."""
        self.micro_batch: int | None = None
        self.graphs: Graphs | None = None
        self.replays = False
        """Whether evaluation batches are computed as CUDA graphs."""
        self._metrics: dict[str, Metric] = {}
        self._compiled: Step | None = None
        self._step: Step | None = None

    def loss(self, batch: Batch) -> Tensor:
        """Return the scalar that is minimised, of one batch."""
        raise UsageError(f"{type(self).__name__} has no loss of a batch alone: call loss_and_carry")

    def random_tensors(self, batch: Batch) -> dict[str, Distribution]:
        """Return the random tensors that one call of ``loss_and_carry`` needs, by name; the batch gives its shapes."""
        return {}

    def initial_carry(self, batch: Batch) -> Tree:
        """Return what a slot remembers before its first step, on the device of ``batch``, its first: a tree of tensors.

        The trees of all slots have the same shapes.
        """
        return {}

    def loss_and_carry(self, batch: Batch, draws: Draws, carry: Tree) -> tuple[Tensor, Tree]:
        """Return the scalar that is minimised, and what the slot remembers for its next step.

        Args:
            draws: the tensors of ``random_tensors``, floating-point ones in the type of the parameters.
            carry: what the slot's previous step returned; its tensors may be overwritten in place.
        """
        return self.loss(batch), carry

    def num_targets(self, batch: Batch, draws: Draws | None = None, carry: Tree = None) -> Tensor | None:
        """Return how many targets the loss is the mean of, int64, (); None: every batch weighs the same.

        Evaluations leave out batches without any.  Without ``draws`` and ``carry``, those of ``loss_and_carry``, only
        the batch's own targets are counted.
        """
        return None

    def draws_of(self, batch: Batch, step: int, slot: int, device: torch.device) -> Draws:
        """Return the random tensors of a batch, the same in every run."""
        declared = self.random_tensors(batch)
        return place(draw(declared, device, self.seed, step, slot), device, self._floating_dtype())

    def split(self, batch: Batch, draws: Draws, carry: Tree, parts: Sequence[slice]) -> list[tuple[Batch, Draws]]:
        """Return rows of a batch, each with their draws, so that the losses of all parts are those of the batch.

        UsageError: the module keeps something from step to step, or draws for rows that are not the batch's.
        """
        if tensors_of(carry):
            raise UsageError(
                f"{type(self).__name__} keeps tensors from step to step, so parts of a batch cannot be computed apart: "
                "set machine.micro_batch=null, and machine.devices to 1 or a divisor of training.accumulate"
            )
        whole, found = self.random_tensors(batch), []
        for part in parts:
            own = map_tensors(lambda tensor: tensor[part], batch)  # noqa: B023
            some = self.random_tensors(own)
            shapes = {name: (whole[name].shape, some[name].shape) for name in whole}
            found.append((own, {name: rows_of_draw(name, one, *shapes[name], part) for name, one in draws.items()}))
        return found

    def counted(self, batch: Batch) -> Tensor:
        """Compute the forward pass whose multiply-adds are counted, on the device of ``batch``, which may be meta."""
        draws = self.draws_of(batch, 0, 0, tensors_of(batch)[0].device)
        varying = {name: draw for name, draw in draws.items() if name not in self.constants}
        return self.loss_and_carry(batch, varying, self.initial_carry(batch))[0]

    def counted_step(self, batch: Batch) -> None:
        """Compute the loss and its gradients, whose FLOPs are counted, on the meta device."""
        self.counted(batch).backward()

    @abstractmethod
    def new_metrics(self) -> dict[str, Metric]:
        """Return fresh metrics for one split, by name; reported as ``<split>_<name>``."""

    @abstractmethod
    def update_metrics(self, metrics: dict[str, Metric], batch: Batch) -> None:
        """Account for one evaluation batch."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the optimiser's groups, each with options of its own.

        ``unit_rows: True`` projects rows to unit norm after each step; the factor of ``schedule`` multiplies ``lr``.
        """
        return [{"params": [parameter for parameter in self.parameters() if parameter.requires_grad]}]

    def groups_and_schedules(self) -> tuple[list[dict[str, Any]], list[Schedule]]:
        """Return the parameter groups without their schedules, and the schedule of each."""
        groups = self.parameter_groups()
        options = [{key: value for key, value in group.items() if key != "schedule"} for group in groups]
        return options, [group.get("schedule", self.schedule) for group in groups]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seed = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {}).get("seed", self.seed)

    def configure_optimizers(self) -> Any:
        steps = self.trainer.max_steps
        if steps == -1 and math.isfinite(found := self.trainer.estimated_stepping_batches):
            steps = int(found)
        if steps < 1:
            raise UsageError(f"max_steps is {steps}: the schedule needs the number of steps, 1 or more")
        groups, schedules = self.groups_and_schedules()
        optimizer = self.optimizer(groups)
        keep_unit_rows(optimizer)
        factors: list[Callable[[int], float]] = [partial(_factor, schedule, steps) for schedule in schedules]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factors), "interval": "step"}}

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        slot = self._slot(batch_idx)
        rank = self.trainer.global_rank if self.shares_rows else 0
        place = [slot, rank] if rank else [slot] if slot else []
        torch.manual_seed(mix(self.seed, "step", self.global_step, *place))

    def compile_loss(self) -> None:
        """Compile what ``training_step`` computes, each shape and each value of the draws in ``constants`` once."""
        if self.uncompilable:
            raise UsageError(f"{self.uncompilable}: set machine.compile=false")
        step = torch.compile(self.loss_and_carry, options=EAGER_RANDOM, dynamic=False)

        def compiled(batch: Batch, draws: Draws, carry: Tree) -> tuple[Tensor, Tree]:
            constants = {name: int(draws[name]) for name in self.constants & draws.keys()}
            return step(batch, {**draws, **constants}, carry)

        self._compiled = compiled

    def step_by(self, micro_batch: int | None, graphs: Callable[[Compute], Graphs] | None) -> None:
        """Compute training steps in micro-batches of at most so many rows, or as CUDA graphs."""
        self.micro_batch, self.replays = micro_batch, graphs is not None
        if micro_batch is None and graphs is None:
            return
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        compute = gradients_of(self.loss_of_step, parameters)
        if micro_batch is not None:
            compute = in_micro_batches(compute, self.split, self.num_targets, micro_batch)
        if graphs is not None:
            compute = self.graphs = graphs(compute)
        self._step = with_gradients(compute, parameters)

    def compute_as_built(self) -> None:
        """Forget what ``compile_loss`` and ``step_by`` have set."""
        self._compiled = self._step = self.graphs = None
        self.replays = False

    def loss_of_step(self, batch: Batch, draws: Draws, carry: Any) -> tuple[Tensor, Any]:
        """Compute ``loss_and_carry``, compiled after ``compile_loss``."""
        return (self._compiled or self.loss_and_carry)(batch, draws, carry)

    def step_loss(self, batch: Batch, draws: Draws, carry: Any) -> tuple[Tensor, Any]:
        """Compute ``loss_and_carry`` as ``compile_loss`` and ``step_by`` say."""
        return (self._step or self.loss_of_step)(batch, draws, carry)

    def own_rows(self, batch: Batch, draws: Draws, carry: Tree) -> tuple[Batch, Draws]:
        """Return what this device computes of a batch: all of it, unless devices share its rows."""
        if not self.shares_rows:
            return batch, draws
        parts = shares(rows_of(batch), self.trainer.world_size)
        return self.split(batch, draws, carry, parts[self.trainer.global_rank :][:1])[0]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        slot = self._slot(batch_idx)
        carry = self.carries[slot] if slot in self.carries else self.initial_carry(batch)
        draws = self.draws_of(batch, self.global_step, slot, self.device)
        carry, weight = place(carry, self.device, None), None
        batch, draws = self.own_rows(batch, draws, carry)
        targets = self.num_targets(batch, draws, carry)
        if targets is None and self.shares_rows:
            targets = torch.tensor(rows_of(batch), device=self.device)
        if targets is not None:
            first = batch_idx % self.trainer.accumulate_grad_batches == 0
            weight = self.weights.weight(targets, self.trainer, first)
        loss, carry = self.step_loss(batch, draws, carry)
        self.carries[slot] = map_tensors(Tensor.detach, carry)
        if self.logs_losses:
            self.log("train_loss", loss.detach(), on_step=True, prog_bar=True)
        return loss if weight is None else loss * weight.to(loss.dtype)

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: Any = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        # Lightning refuses to clip before a fused optimiser, for float16's sake (its issue 21435).
        plugin = self.trainer.precision_plugin
        clip = plugin.clip_gradients if getattr(plugin, "scaler", None) else partial(Precision.clip_gradients, plugin)
        clip(optimizer, gradient_clip_val or 0, GradClipAlgorithmType(gradient_clip_algorithm or "norm"))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.weights.correct(optimizer, self.trainer)

    def on_train_end(self) -> None:
        self.carries = {}

    def evaluate(self, data: CounterBasedDataModule, batches: int | None = None) -> dict[str, float]:
        """Return every metric of every split, by ``<split>_<name>``, of the first ``batches`` of each (None: all).

        The random numbers of each batch follow from ``seed``, split and batch.
        """
        training = self.training
        self.eval()
        metrics = {split: self._fresh_metrics() for split in data.splits}
        graphs, own = None, self._fresh_metrics() if self.replays else {}
        if own and not any(metric.full_state_update for metric in own.values()):
            graphs = Graphs(partial(self._measured, own), alone=False)
        with torch.no_grad():
            for split in data.splits:
                for index, batch in enumerate(islice(data.evaluation_batches(split), batches)):
                    self._evaluate_batch(metrics[split], batch, split, index, graphs)
        self.train(training)
        return {
            f"{split}_{name}": float(metric.compute())
            for split, group in metrics.items()
            for name, metric in group.items()
        }

    @torch.no_grad()
    def batch_losses(self, data: CounterBasedDataModule, split: str) -> list[float]:
        """Return the metric ``loss`` of each evaluation batch of a split; the module is in evaluation mode."""
        found = []
        for index, batch in enumerate(data.evaluation_batches(split)):
            metrics = self._fresh_metrics()
            self._evaluate_batch(metrics, batch, split, index)
            found.append(float(metrics["loss"].compute()))
        return found

    def on_validation_epoch_start(self) -> None:
        with torch.inference_mode(False):
            self._metrics = {name: metric.to(self.device) for name, metric in self.new_metrics().items()}

    def validation_step(self, batch: Batch, batch_idx: int, split: str = "val") -> None:
        # Energy models differentiate in their forward pass, which inference mode and its tensors forbid.
        with torch.inference_mode(False), torch.no_grad():
            self._evaluate_batch(self._metrics, map_tensors(Tensor.clone, batch), split, batch_idx)

    def on_validation_epoch_end(self, split: str = "val") -> None:
        self.log_dict({f"{split}_{name}": metric.compute() for name, metric in self._metrics.items()}, prog_bar=True)

    on_test_epoch_start = on_validation_epoch_start

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx, "test")

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end("test")

    def _evaluate_batch(
        self, metrics: dict[str, Metric], batch: Batch, split: str, index: int, graphs: Graphs | None = None
    ) -> None:
        targets = self.num_targets(batch)
        if targets is not None and not int(targets):
            return
        torch.manual_seed(mix(self.seed, "evaluate", split, index))
        placed = place(batch, self.device, self._floating_dtype())
        if graphs is None or not all(metric.update_called for metric in metrics.values()):
            self.update_metrics(metrics, placed)
            return
        states: Any = graphs(placed, {}, ())[2]
        for metric, state in zip(metrics.values(), states, strict=True):
            metric.merge_state(state)

    def _measured(
        self, metrics: dict[str, Metric], batch: Batch, draws: Draws, carry: Tree
    ) -> tuple[Tensor, Tree, Any]:
        """Return what ``metrics`` say of one batch, in the form of a ``Compute``."""
        for metric in metrics.values():
            metric.reset()
        self.update_metrics(metrics, batch)
        return torch.zeros(()), carry, [metric.metric_state for metric in metrics.values()]

    def _fresh_metrics(self) -> dict[str, Metric]:
        metrics = {name: metric.to(self.device) for name, metric in self.new_metrics().items()}
        for metric in metrics.values():
            for child in metric.modules():
                if isinstance(child, Metric):  # every device evaluates everything: there is nothing to add up
                    child.distributed_available_fn = lambda: False
        return metrics

    def _slot(self, batch_idx: int) -> int:
        number = batch_idx % self.trainer.accumulate_grad_batches
        return number if self.shares_rows else self.trainer.global_rank + self.trainer.world_size * number

    def _floating_dtype(self) -> torch.dtype | None:
        return next((parameter.dtype for parameter in self.parameters() if parameter.is_floating_point()), None)


def _built(part: Any) -> Any:
    return instantiate(part) if isinstance(part, Mapping) else part


def _factor(schedule: Schedule, steps: int, step: int) -> float:
    return schedule.factor(min(step, steps), steps)
