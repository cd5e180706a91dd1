"""One cell through Lightning's Trainer, alone or as one of several ranks, resumable at any step, bit for bit."""

import contextlib
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers import Logger
from torch import Tensor

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError, first_line
from paper_repro.base.identity import AUTO
from paper_repro.cells.planned import count_devices
from paper_repro.cells.tasks import Report
from paper_repro.training import checkpoints
from paper_repro.training.build import BuiltCell
from paper_repro.training.counting import measure
from paper_repro.training.machine import Rank
from paper_repro.training.module import PaperModule
from paper_repro.training.steps import Graphs
from paper_repro.training.watch import Evaluations, Journal, LossLog, Watch

AUTO_FLOPS = 2e12
"""``machine.compile=auto`` compiles a training of so many FLOPs of matrix products, about a minute of one processor
core: compiling takes 15 to 60 s, and a compiled pass on a CPU 0.45 to 0.85 of the time of an uncompiled one."""
FEWEST_PASSES = 100
"""``auto`` compiles no shorter run."""
UNHEARD = (
    "does not have many workers",
    "`srun` command is available",
    "LeafSpec.*is deprecated",
    "but have no `val_dataloader`",  # Evaluations take its place
    "sync_dist=True",  # every rank has all of every metric
)
"""Warnings of Lightning that training keeps silent."""


class Watching(L.Callback):
    """Hands Lightning's hooks to a ``Watch`` and an ``Evaluations``, whose state is part of Lightning's checkpoint."""

    def __init__(self, module: PaperModule, watch: Watch, evaluations: Evaluations, rank: Rank) -> None:
        self.module, self.watch, self.evaluations, self.rank = module, watch, evaluations, rank
        self._losses: list[Tensor] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _align_batches(trainer)
        self.watch.stop_if_requested(trainer.global_step)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Lightning has divided each loss by the number of batches whose gradients it sums.
        loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs
        self._losses.append(loss.detach().reshape(1))
        if len(self._losses) < trainer.accumulate_grad_batches:
            return
        losses = self.rank.mean(sum(self._losses[1:], self._losses[0]))
        self.watch.log.add(trainer.global_step - 1, losses * self.module.weights.correction)
        self._losses.clear()
        if self.evaluations.due(trainer.global_step, self.watch.log.steps):
            (metrics,) = self.evaluations.after(trainer.global_step)
            others = [one for one in trainer.callbacks if one is not self]  # type: ignore[attr-defined]
            if others:  # which take it for a validation of Lightning's own
                self.module.log_dict(metrics, logger=False, prog_bar=True)
            for callback in others:
                callback.on_validation_end(trainer, self.module)
        if not self.watch.after_step(trainer.global_step):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {
            "watch": self.watch.state_dict(),
            "evaluations": self.evaluations.state_dict(),
            "carries": self.rank.collect(self.module.carries),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.watch.load_state_dict(state_dict["watch"])
        self.evaluations.load_state_dict(state_dict["evaluations"])
        trees, rank = state_dict["carries"], self.rank  # of all slots
        self.module.carries = {slot: tree for slot, tree in trees.items() if slot % rank.count == rank.index}


def train(
    built: BuiltCell, folder: Path, report: Report | None, rank: Rank, journal: Journal | None = None
) -> tuple[Watch, Evaluations, dict[str, float], str]:
    """Train the cell's module, from the newest checkpoint in ``folder`` if there is one, and evaluate it.

    Every rank calls this.  Each computes its share of a step's batches and evaluates all of every split; rank 0 alone
    has checkpoints, a report and a journal.  The last two results are the metrics, none if the run diverged, and
    ``Outcome.compiled``.

    StopRequestedError: after a checkpoint was saved; UsageError: a checkpoint of another cell, or a loss that cannot be
    compiled.
    """
    machine, training, device = built.machine, built.training, built.machine.device_of(rank.environment.local_rank())
    log = LossLog(1, training.steps, device)

    def save(step: int) -> None:
        trainer.save_checkpoint(checkpoints.checkpoint_path(folder, step))

    def context() -> contextlib.AbstractContextManager[Any]:
        return trainer.precision_plugin.forward_context()

    watch, evaluations = Watch(log, machine, report, save, journal, rank), Evaluations([built], context, journal)
    if training.precision == "64-true":  # Lightning loads a checkpoint before it converts the module
        built.module.double()
    compiled = compile_loss(built)
    _step_by(built)
    with _quiet(), _compiler(falls_back=machine.compile == AUTO and compiled.startswith("yes")):
        step = rank.share((checkpoints.newest(folder, [built.cell.id]) or 0) if rank.index == 0 else 0)
        callbacks = [instantiate(node) for node in (training.callbacks or {}).values()]
        loggers = journal.loggers if journal is not None and callbacks else []
        built.module.logs_losses = bool(callbacks)
        trainer = _trainer(built, folder, [Watching(built.module, watch, evaluations, rank), *callbacks], loggers, rank)
        path = checkpoints.checkpoint_path(folder, step) if step else None
        trainer.fit(built.module, datamodule=built.data, ckpt_path=path)
        if built.module.graphs is not None:
            compiled = "; ".join(filter(None, [compiled, f"CUDA graph: {built.module.graphs}"]))
        if log.diverged()[0] is not None:
            return watch, evaluations, {}, compiled
        log.end = trainer.global_step
        watch.stop_if_requested(log.end)
        built.module.to(device)  # Lightning has moved it to the CPU
        metrics = evaluations.finish(0, log.end)
    built.module.compute_as_built()  # what measures the trained module may copy it
    return watch, evaluations, metrics, compiled


def _step_by(built: BuiltCell) -> None:
    """Have steps computed in micro-batches or as CUDA graphs where the machine section says so."""
    machine, module = built.machine, built.module
    micro_batch = machine.micro_batch if isinstance(machine.micro_batch, int) else None
    graphs = machine.graphs and module.automatic_optimization  # CET relaxes by graphs of its own
    if micro_batch and not module.automatic_optimization:
        name = type(module).__name__
        raise UsageError(f"machine.micro_batch={micro_batch}: {name} computes its gradients itself; set it to null")
    alone, must = machine.batches_each(built.training.accumulate) == 1, machine.cuda_graph is True
    made = partial(Graphs, constants=module.constants, alone=alone, must=must)
    module.step_by(micro_batch, made if graphs else None)


def compile_loss(built: BuiltCell) -> str:
    """Compile a cell's training loss where ``machine.compile`` says so, and return the text for the record.

    What ``auto`` does follows from the config and this machine alone, so a resumed run does the same.
    """
    asked = built.machine.compile
    if asked == AUTO and (against := _reason_against(built)):
        return f"no: {against}"
    if not asked:
        return ""
    built.module.compile_loss()
    return f"yes: machine.compile={str(asked).lower()}"


def _reason_against(built: BuiltCell) -> str:
    """Return why ``auto`` does not compile a cell's loss; nothing if it does."""
    passes = built.training.steps * built.training.accumulate
    if built.module.uncompilable:
        return built.module.uncompilable
    if passes < FEWEST_PASSES:
        return f"too short: {passes} passes"
    cost = measure(built.cell.config)
    if (flops := cost.step_flops * cost.steps) < AUTO_FLOPS:
        return f"{flops:.1e} FLOPs of matrix products, and auto compiles from {AUTO_FLOPS:.0e} on"
    rates = [getattr(part, "p", getattr(part, "dropout", 0)) for part in built.module.modules()]
    if any(isinstance(rate, float) and rate > 0 for rate in rates):
        return "dropout, whose random numbers compiled code draws more slowly"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch chooses it
    return "" if shutil.which(compiler) else f"no C++ compiler {compiler} here"


def _trainer(
    built: BuiltCell, folder: Path, callbacks: list[L.Callback], loggers: Sequence[Logger], rank: Rank
) -> L.Trainer:
    machine, training = built.machine, built.training
    on_gpu = machine.device.type == "cuda"
    # Without an environment Lightning would take a job of SLURM for one that it is to spread over its tasks.
    plugins: list[Any] = [checkpoints.DurableCheckpointIO([built.cell.id]), rank.environment]
    try:
        return L.Trainer(
            accelerator="gpu" if on_gpu else "cpu",
            devices=machine.devices if on_gpu else count_devices(machine.devices),
            num_nodes=machine.nodes if rank.count > 1 else 1,
            strategy="ddp" if rank.count > 1 else "auto",
            accumulate_grad_batches=machine.batches_each(training.accumulate),
            precision=training.precision,  # type: ignore[arg-type]
            max_steps=training.steps,
            max_epochs=-1,
            gradient_clip_val=training.clip_norm,
            callbacks=callbacks,
            plugins=plugins,
            default_root_dir=folder,
            logger=[*loggers] or False,
            log_every_n_steps=machine.log_every_steps,
            enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks),
            enable_progress_bar=any(isinstance(one, ProgressBar) for one in callbacks),
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            # Energy models differentiate in their forward pass, which inference mode would forbid.
            inference_mode=False,
        )
    except (ValueError, MisconfigurationException) as error:
        raise UsageError(f"cell {built.cell.id}: Lightning refuses the trainer's settings: {error}") from error


def _align_batches(trainer: L.Trainer) -> None:
    """Have Lightning count from the first batch of a step: a checkpoint counts those of each device it was made on."""
    current = trainer.fit_loop.epoch_loop.batch_progress.current
    shift = trainer.global_step * trainer.accumulate_grad_batches - current.ready
    for name in ("ready", "started", "processed", "completed"):  # the last is one behind in the middle of a batch's end
        setattr(current, name, getattr(current, name) + shift)


@contextlib.contextmanager
def _compiler(falls_back: bool) -> Iterator[None]:
    """Raise a data worker's UsageError without the worker's traceback, and an error of torch's compiler with advice.

    With ``falls_back`` what torch cannot compile is run as it is.
    """
    try:
        with torch._dynamo.config.patch(suppress_errors=True) if falls_back else contextlib.nullcontext():
            yield
    except UsageError as error:
        _, found, message = str(error).rpartition(f"{UsageError.__name__}: ")
        if not found:
            raise
        raise UsageError(message.strip()) from error
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        what = f"torch cannot compile this loss here ({first_line(error)})"
        raise UsageError(f"{what}: set machine.compile=false, or auto") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's banners and its advice on loaders, which are not for those who rerun a table."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in UNHEARD:
            warnings.filterwarnings("ignore", message=f".*{message}.*")
        yield
