"""The LightningModule that every experiment builds on: one loss, metrics per split, an optimiser and a schedule."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric

from paper_repro.base.errors import UsageError
from paper_repro.base.seeds import mix
from paper_repro.datamodules.counter_based import Batch, CounterBasedDataModule
from paper_repro.training.batches import place
from paper_repro.training.schedules import Schedule
from paper_repro.training.unit_rows import keep_unit_rows


class PaperModule(L.LightningModule):
    """A model, how its loss is computed, and what is measured on each split.

    A subclass writes ``loss``, ``new_metrics`` and ``update_metrics``.  ``loss`` must be free of side effects (no
    logging, no state), because the stacked trainer calls it for many models at once under ``vmap``.

    Args:
        model: the nn.Module that computes.
        optimizer: called with the parameter groups, for example ``partial(AdamW, lr=0.005)``.
        schedule: the factor of the base learning rate at each step.

    ``seed`` is the cell's: the random numbers of each step are drawn after ``manual_seed(mix(seed, "step", step))``, so
    that a resumed run draws what an uninterrupted one would have drawn.  The k-th of several batches of a step has
    ``mix(seed, "step", step, k)``, k > 0, whichever device computes it.
    """

    seed: int = 0

    def __init__(self, model: nn.Module, optimizer: Callable[..., Optimizer], schedule: Schedule) -> None:
        super().__init__()
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.results: dict[str, float] = {}
        self._compiled: Callable[[Batch], Tensor] | None = None
        self._metrics: dict[str, dict[str, Metric]] = {}

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """The scalar that is minimised, of one batch."""

    def counted(self, batch: Batch) -> Tensor:
        """The forward pass whose multiply-adds are counted, on the meta device and without gradients: the loss.

        A module whose work lies elsewhere says here what is counted.
        """
        return self.loss(batch)

    def counted_step(self, batch: Batch) -> None:
        """The part of a training step that is counted for each batch, on the meta device: the loss and its gradients.

        A module that is trained without a backward pass says here what is counted.
        """
        self.loss(batch).backward()

    @abstractmethod
    def new_metrics(self) -> dict[str, Metric]:
        """Fresh metrics for one split, by name; reported as ``<split>_<name>``."""

    @abstractmethod
    def update_metrics(self, metrics: dict[str, Metric], batch: Batch) -> None:
        """Account for one evaluation batch."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimiser gets: ``params`` and, where they differ from the optimiser's own, options of the group.

        ``unit_rows: True`` has every row of the group's matrices projected to unit norm after each optimiser step.
        """
        return [{"params": [parameter for parameter in self.parameters() if parameter.requires_grad]}]

    def configure_optimizers(self) -> Any:
        steps = self.trainer.max_steps
        if steps < 1:
            raise UsageError(f"max_steps is {steps}: the schedule needs the number of steps, 1 or more")
        optimizer = self.optimizer(self.parameter_groups())
        keep_unit_rows(optimizer)
        schedule = LambdaLR(optimizer, lambda step: self.schedule.factor(min(step, steps), steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        each = self.trainer.accumulate_grad_batches
        number = self.trainer.global_rank + self.trainer.world_size * (batch_idx % each)
        torch.manual_seed(mix(self.seed, "step", self.global_step, *([number] if number else [])))

    def compile_loss(self) -> None:
        """Compile what ``training_step`` computes; names in the state dict and evaluations stay as they are."""
        self._compiled = torch.compile(self.loss)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = (self._compiled or self.loss)(batch)
        if self.trainer.loggers:
            self.log("train_loss", loss.detach(), on_step=True)
        return loss

    def on_test_start(self) -> None:
        self._metrics = {split: self._fresh_metrics() for split in self._data().splits}

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        split = self._data().splits[dataloader_idx]
        self._measure(split, batch_idx, self._metrics[split], batch)

    def on_test_epoch_end(self) -> None:
        self.results = _computed(self._metrics)
        self._metrics = {}
        self.log_dict(self.results)

    def evaluate(self, data: CounterBasedDataModule) -> dict[str, float]:
        """Every metric of every split, without a Trainer; what ``trainer.test`` would give.

        The random numbers of each batch follow from ``seed``, split and batch; torch's global generator is reseeded.
        """
        training = self.training
        self.eval()
        metrics = {split: self._fresh_metrics() for split in data.splits}
        dtype = next((p.dtype for p in self.parameters() if p.is_floating_point()), None)
        with torch.no_grad():
            for split in data.splits:
                for index, batch in enumerate(data.evaluation_batches(split)):
                    self._measure(split, index, metrics[split], place(batch, self.device, dtype))
        self.train(training)
        self.results = _computed(metrics)
        return self.results

    def _measure(self, split: str, index: int, metrics: dict[str, Metric], batch: Batch) -> None:
        torch.manual_seed(mix(self.seed, "evaluate", split, index))
        self.update_metrics(metrics, batch)

    def _fresh_metrics(self) -> dict[str, Metric]:
        metrics = {name: metric.to(self.device) for name, metric in self.new_metrics().items()}
        for metric in metrics.values():
            for part in metric.modules():
                if isinstance(part, Metric):  # every device evaluates everything: there is nothing to add up
                    part.distributed_available_fn = _alone
        return metrics

    def _data(self) -> CounterBasedDataModule:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, CounterBasedDataModule):
            raise UsageError(
                f"testing needs a CounterBasedDataModule, found {type(data).__name__}: "
                "call trainer.test(module, datamodule=...)"
            )
        return data


def _alone() -> bool:
    return False


def _computed(metrics: dict[str, dict[str, Metric]]) -> dict[str, float]:
    return {
        f"{split}_{name}": float(metric.compute()) for split, group in metrics.items() for name, metric in group.items()
    }
