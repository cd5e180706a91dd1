"""CET, tables 2 to 4: what an experiment's model, phases, optimiser and masks come to, asked of the built objects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paper_repro.base.configs import instantiate
from paper_repro.base.errors import UsageError, nearest
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report, Task
from paper_repro.datamodules.images import MaskedImageData
from paper_repro.models.cet import CET, Phases
from paper_repro.training.counting import num_parameters

MASKS = ("_target_", "source", "cell", "mask_ratio")
"""Keys of the data that describe the masks alone; no image is read."""


class CompletionSettings(Task):
    """Gives the number that ``item`` names as ``value``; a task that trains nothing."""

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [_outcome(cell.config) for cell in cells]


def _outcome(config: Mapping[str, Any]) -> Outcome:
    model, found = _model(config["counted"]), settings(config)
    item = config["item"]
    if item not in found:
        raise UsageError(f"item={item} is no setting{nearest(item, found)}")
    return Outcome(FINISHED, metrics={"value": found[item]}, parameters=num_parameters(model))


def settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Ask the built objects for the numbers of tables 2 to 4 and of the text; a tensor gives how many numbers it holds.

    Raises:
        UsageError: a section that cannot be built, or of another kind.
    """
    return {name: float(value) for name, value in {**_dimensions(config), **_training(config)}.items()}


def _dimensions(config: Mapping[str, Any]) -> dict[str, float]:
    model = _model(config["counted"])
    patches, attention, memories = model.patches, model.attention, model.memory.weight
    with torch.device("meta"):
        clamped = model.clamp(torch.zeros(1, patches.channels, patches.size, patches.size))
    state = model.first(clamped)
    sizes = {name.replace(".", "_"): parameter.numel() for name, parameter in model.named_parameters()}
    return {
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
        **sizes,
        "parameters": num_parameters(model),
    }


def _training(config: Mapping[str, Any]) -> dict[str, float]:
    masks = {key: config["data"][key] for key in MASKS}
    phases, data = instantiate(config["phases"]), instantiate(masks)
    for name, built, kind in (("phases", phases, Phases), ("data", data, MaskedImageData)):
        if not isinstance(built, kind):
            raise UsageError(f"{name}: a {kind.__name__} was expected, found {type(built).__name__}")
    optimizer = instantiate(config["optimizer"])([torch.nn.Parameter(torch.ones(1))])
    (group,), steps = optimizer.param_groups, config["training"]["steps"]
    schedule = instantiate(config["schedule"])
    return {
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


def _model(node: Mapping[str, Any]) -> CET:
    with torch.device("meta"):
        model = instantiate(node)
    if not isinstance(model, CET):
        raise UsageError(f"counted: a CET was expected, found {type(model).__name__}")
    return model
