"""One cell through Lightning's Trainer, resumable at any step, bit for bit."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from paper_repro.errors import UsageError
from paper_repro.tasks import Report
from paper_repro.training import checkpoints
from paper_repro.training.build import Parts
from paper_repro.training.evaluations import Evaluations
from paper_repro.training.losses import LossLog
from paper_repro.training.watch import Watch


class Watching(L.Callback):
    """Lightning's hooks, handed to a ``Watch``; its state travels in Lightning's checkpoint."""

    def __init__(self, watch: Watch, evaluations: Evaluations) -> None:
        self.watch = watch
        self.evaluations = evaluations

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.watch.stop_if_requested(trainer.global_step)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.watch.log.add(trainer.global_step - 1, loss.detach().reshape(1))
        if self.evaluations.due(trainer.global_step, self.watch.log.steps):
            self.evaluations.after(trainer.global_step)
        if not self.watch.after_step(trainer.global_step):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"watch": self.watch.state_dict(), "evaluations": self.evaluations.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.watch.load_state_dict(state_dict["watch"])
        self.evaluations.load_state_dict(state_dict["evaluations"])


def train(parts: Parts, folder: Path, report: Report) -> tuple[Watch, Evaluations, dict[str, float]]:
    """Train the cell's module, from the newest checkpoint in ``folder`` if there is one, and evaluate it.

    Returns the watch (losses, seconds, divergence), the evaluations and the metrics, none if the run diverged.

    Raises:
        StopRequestedError: after a checkpoint was saved.
        UsageError: a checkpoint of another cell, or an accelerator that is not there.
    """
    machine, recipe, device = parts.machine, parts.recipe, parts.machine.device
    identity = [parts.cell.id]
    log = LossLog(1, recipe.steps, device)

    def save(step: int) -> None:
        trainer.save_checkpoint(checkpoints.checkpoint_path(folder, step))

    watch = Watch(log, machine, report, save)

    def context() -> AbstractContextManager[None]:
        return trainer.precision_plugin.forward_context()

    evaluations = Evaluations([parts.module], [parts.data], recipe.evaluate_every, recipe.keep, context)
    with _quiet():
        trainer = _trainer(parts, folder, Watching(watch, evaluations), identity)
        found = checkpoints.newest(folder, identity)
        if found is not None:
            watch.resumed_at(found.step)
        trainer.fit(parts.module, datamodule=parts.data, ckpt_path=found and str(found.path))
        if log.diverged()[0] is not None:
            return watch, evaluations, {}
        if trainer.global_step != recipe.steps:
            raise RuntimeError(f"training ended after step {trainer.global_step}, expected {recipe.steps}")
        watch.stop_if_requested(recipe.steps)
        trainer.test(parts.module, datamodule=parts.data, verbose=False)
    return watch, evaluations, evaluations.finish(0, recipe.steps, parts.module.results)


def _trainer(parts: Parts, folder: Path, watching: Watching, identity: list[str]) -> L.Trainer:
    machine, recipe = parts.machine, parts.recipe
    accelerator = "gpu" if machine.accelerator == "cuda" else machine.accelerator
    try:
        return L.Trainer(
            accelerator=accelerator,
            devices=machine.devices,
            strategy=machine.strategy,
            precision=recipe.precision,  # type: ignore[arg-type]
            max_steps=recipe.steps,
            max_epochs=-1,
            gradient_clip_val=recipe.clip_norm,
            gradient_clip_algorithm="norm",
            callbacks=[watching],
            plugins=[checkpoints.DurableCheckpointIO(identity)],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            # Energy models differentiate in their forward pass, which inference mode would forbid.
            inference_mode=False,
        )
    except (ValueError, MisconfigurationException) as error:
        raise UsageError(f"cell {parts.cell.id}: Lightning refuses the trainer's settings: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's banners and its advice on loaders are not for whoever reruns a table."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
