"""EBT, tables D.3 and D.4: what an experiment's optimiser, schedule, model and inner steps come to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.models.common import CausalLanguageModel
from paper_repro.models.ebt import EBT
from paper_repro.probes.optimisation_settings import settings as optimisation_settings
from paper_repro.training.module import PaperModule


class PredictionSettings(Task):
    """Gives the number that ``item`` names as ``value``; a task that trains nothing."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [_outcome(cell.config) for cell in cells]


def _outcome(config: Mapping[str, Any]) -> Outcome:
    item, found = config["item"], settings(config)
    if item not in found:
        raise UsageError(f"item={item} is no setting of this model{nearest(item, found)}")
    return Outcome(FINISHED, metrics={"value": found[item]})


def settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Ask the objects that training would build, and ``optimisation_settings``, for the numbers of both tables.

    ``adamw`` and ``learn_step_size`` are 1 or 0.  ``minimum_lr_scale`` is the peak over the final learning rate,
    ``step_size_minimum`` the same of the rate with which the step size is learned, and ``step_size_multiplier`` the
    peak of that rate over the peak of the others.

    Raises:
        UsageError: a section that cannot be built, a model that is neither EBT nor a CausalLanguageModel, or weights of
            which some decay and some do not.
    """
    common, module = optimisation_settings(config), _module(config)
    optimizer, steps = module.optimizer(module.groups_and_schedules()[0]), config["training"]["steps"]
    alpha: Any = getattr(module.model, "step_size_parameter", None)
    decays = {group["weight_decay"] for group in optimizer.param_groups if not _holds(group, alpha)}
    if len(decays) > 1:
        raise UsageError(f"optimizer: one weight decay was expected for all weights, found {sorted(decays)}")
    found = {
        **common,
        "adamw": type(optimizer) is torch.optim.AdamW,
        "lr": optimizer.defaults["lr"],
        "weight_decay": decays.pop(),
        "minimum_lr_scale": 1 / common["factor_end"],
        "sequences": common["windows"],
        "context": module.model.block_length,
        "vocabulary": module.model.vocabulary_size,
    }
    if isinstance(module.model, EBT):
        found["num_steps"] = module.thinking.num_steps
        found["step_size"] = config["model"]["step_size"]
        found["learn_step_size"] = alpha.requires_grad
        found |= _learned_step_size(module, optimizer, alpha, int(common["warmup_steps"]), steps)
    return {name: float(value) for name, value in found.items()}


def _module(config: Mapping[str, Any]) -> Any:
    with torch.device("meta"):
        model = instantiate(config["model"])
    if not isinstance(model, (EBT, CausalLanguageModel)):
        raise UsageError(f"model: an EBT or a CausalLanguageModel was expected, found {type(model).__name__}")
    make = instantiate({**config["module"], "_partial_": True})
    module = make(model=model, optimizer=instantiate(config["optimizer"]), schedule=instantiate(config["schedule"]))
    if not isinstance(module, PaperModule):
        raise UsageError(f"module: a PaperModule was expected, found {type(module).__name__}")
    return module


def _holds(group: Mapping[str, Any], alpha: Any) -> bool:
    return any(parameter is alpha for parameter in group["params"])


def _learned_step_size(module: Any, optimizer: Any, alpha: Any, peak: int, steps: int) -> dict[str, float]:
    """Return the settings of the group that learns the step size; none if it is kept."""
    schedules = module.groups_and_schedules()[1]
    for group, schedule in zip(optimizer.param_groups, schedules, strict=True):
        if _holds(group, alpha):
            multiplier = schedule.factor(peak, steps)
            return {
                "step_size_decay": group["weight_decay"],
                "step_size_multiplier": multiplier,
                "step_size_minimum": multiplier / schedule.factor(steps, steps),
            }
    return {}
