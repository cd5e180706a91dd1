"""Numbers of an experiment's model, optimiser, schedule, batch and phases, asked of the objects that training would
use; tasks that train nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Task
from paper_repro.models.ebt import EBT
from paper_repro.training.counting import num_parameters

MASKS = ("_target_", "source", "cell", "mask_ratio")  # keys of the data that describe the masks alone; no image is read


class ModelSize(Task):
    """Counts the model of ``counted``, a language model at its paper's size, on the meta device.

    * ``parameters``: all trainable ones.
    * ``parameters_counted_early``: without the parts named in ``made_later``.
    * ``parameters_other_vocabulary``: all trainable ones, with ``other_vocabulary`` token ids.
    """

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        config = cell.config
        node, other = config["counted"], {"vocabulary_size": config["other_vocabulary"]}
        found = {
            "parameters": count(node),
            "parameters_counted_early": count(node, config["made_later"]),
            "parameters_other_vocabulary": count({**node, **other}),
        }
        metrics = {name: float(number) for name, number in found.items()}
        return Outcome(FINISHED, metrics, parameters=found["parameters"])


def count(node: Mapping[str, Any], left_out: Sequence[str] = ()) -> int:
    """Count the trainable parameters of the model that ``node`` describes, without its children in ``left_out``."""
    return num_parameters(_on_meta(node), leave_out=left_out)


def _on_meta(node: Mapping[str, Any]) -> Any:
    with torch.device("meta"):
        return instantiate(node)


class OptimisationSettings(Task):
    """Gives the numbers of ``optimisation_settings``."""

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        return Outcome(FINISHED, optimisation_settings(cell.config))


def optimisation_settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Read settings off the built optimiser and schedule, of which some step has the full rate.

    ``warmup_steps`` is the first optimiser step with the full rate; ``factor_...`` is the share of the initial rate at
    the first step, after a quarter and after half of the steps behind the warm-up, at the last step and at the end;
    ``windows`` and ``tokens`` are of one optimiser step.
    """
    training, data, steps = config["training"], config["data"], config["training"]["steps"]
    optimizer = instantiate(config["optimizer"])([torch.nn.Parameter(torch.ones(1, 1))])
    (group,) = optimizer.param_groups
    schedule = instantiate(config["schedule"])
    warmup = next(step for step in range(steps) if schedule.factor(step, steps) == 1.0)
    places = {
        "first": 0,
        "quarter": warmup + (steps - warmup) // 4,
        "half": warmup + (steps - warmup) // 2,
        "last": steps - 1,
        "end": steps,
    }
    windows = data["batch_size"] * training["accumulate"]
    return {
        "weight_decay": group["weight_decay"],
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "eps": group["eps"],
        "clip_norm": training["clip_norm"],
        "steps": steps,
        "warmup_steps": warmup,
        **{f"factor_{name}": schedule.factor(step, steps) for name, step in places.items()},
        "windows": windows,
        "tokens": windows * data["window"],
    }


def _outcome(config: Mapping[str, Any], found: Mapping[str, float]) -> Outcome:
    """Return the number that a config's ``item`` names, as ``value``."""
    item, parameters = config["item"], found.get("parameters")
    if item not in found:
        raise UsageError(f"item={item} is no setting{nearest(item, found)}")
    return Outcome(FINISHED, {"value": found[item]}, parameters=None if parameters is None else int(parameters))


class PredictionSettings(Task):
    """Gives the number of EBT's tables D.3 and D.4 that ``item`` names as ``value``."""

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        return _outcome(cell.config, prediction_settings(cell.config))


def prediction_settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Ask the objects that training would build, and ``optimisation_settings``, for the numbers of both tables.

    ``adamw`` and ``learn_step_size`` are 1 or 0.  ``minimum_lr_scale`` is the peak over the final learning rate,
    ``step_size_minimum`` the same of the rate with which the step size is learned, and ``step_size_multiplier`` the
    peak of that rate over the peak of the others.
    """
    common = optimisation_settings(config)
    make = instantiate({**config["module"], "_partial_": True})
    parts = {name: instantiate(config[name]) for name in ("optimizer", "schedule")}
    module = make(model=_on_meta(config["model"]), **parts)
    optimizer, steps = module.optimizer(module.groups_and_schedules()[0]), config["training"]["steps"]
    alpha: Any = getattr(module.model, "step_size_parameter", None)
    (decay,) = {group["weight_decay"] for group in optimizer.param_groups if not _holds(group, alpha)}
    found = {
        **common,
        "adamw": type(optimizer) is torch.optim.AdamW,
        "lr": optimizer.defaults["lr"],
        "weight_decay": decay,
        "minimum_lr_scale": 1 / common["factor_end"],
        "sequences": common["windows"],
        "context": module.model.block_length,
        "vocabulary": module.model.vocabulary_size,
    }
    if isinstance(module.model, EBT):
        found["num_steps"] = module.thinking.num_steps
        found["step_size"] = config["model"]["step_size"]
        found["learn_step_size"] = alpha.requires_grad
        for group, schedule in zip(optimizer.param_groups, module.groups_and_schedules()[1], strict=True):
            if _holds(group, alpha):
                multiplier = schedule.factor(int(common["warmup_steps"]), steps)
                found["step_size_decay"] = group["weight_decay"]
                found["step_size_multiplier"] = multiplier
                found["step_size_minimum"] = multiplier / schedule.factor(steps, steps)
    return {name: float(value) for name, value in found.items()}


def _holds(group: Mapping[str, Any], alpha: Any) -> bool:
    return any(parameter is alpha for parameter in group["params"])


class CompletionSettings(Task):
    """Gives the number of CET's tables 2 to 4 that ``item`` names as ``value``."""

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        return _outcome(cell.config, completion_settings(cell.config))


def completion_settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Ask the built objects for the numbers of tables 2 to 4 and of the text; a tensor gives its number of elements."""
    model = _on_meta(config["counted"])
    patches, attention, memories = model.patches, model.attention, model.memory.weight
    with torch.device("meta"):
        clamped = model.clamp(torch.zeros(1, patches.channels, patches.size, patches.size))
    state = model.first(clamped)
    phases, data = instantiate(config["phases"]), instantiate({key: config["data"][key] for key in MASKS})
    optimizer = instantiate(config["optimizer"])([torch.nn.Parameter(torch.ones(1))])
    (group,), steps = optimizer.param_groups, config["training"]["steps"]
    schedule = instantiate(config["schedule"])
    found = {
        "channels": patches.channels,
        "image_side": patches.size,
        "patch_side": patches.patch,
        "stride": patches.stride,
        "num_patches": clamped.patches.shape[1],
        "num_tokens": state.z.shape[1],
        "token_width": state.z.shape[2],
        "num_heads": attention.num_heads,
        "head_width": len(attention.query) // attention.num_heads,
        "gamma": attention.gamma,
        "num_memories": memories.shape[0],
        "memory_width": memories.shape[1],
        "tokens": state.z.numel(),
        "image": state.y.numel(),
        **{name.replace(".", "_"): parameter.numel() for name, parameter in model.named_parameters()},
        "parameters": num_parameters(model),
        "cells": data.num_cells,
        "blank_cells": data.num_blank,
        "weight_decay": group["weight_decay"],
        "rate_first": group["lr"] * schedule.factor(0, steps),
        "rate_last": group["lr"] * schedule.factor(steps, steps),
        "free_steps": phases.free_steps,
        "nudged_steps": phases.nudged_steps,
        "beta": phases.beta,
        "step_size": phases.step_size,
    }
    return {name: float(value) for name, value in found.items()}
