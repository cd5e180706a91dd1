"""The machine section of a config, checked before anything heavy is imported and before a process is started."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base.errors import STRATEGIES, UsageError
from paper_repro.base.identity import MACHINE
from paper_repro.cells.loggers import LOGGERS

ACCELERATORS = ("cpu", "gpu", "cuda", "auto")
IMPLEMENTATIONS = ("auto", "fused", "closed_form", "reference")
"""Those of ``kernels.preferences``, which cells do not import."""


def check_machine(config: Mapping[str, Any]) -> None:
    """Check every number and path of the ``machine`` section that the runner and its workers read.

    Raises:
        UsageError: a value is out of range or of another kind, with its key, what was found and what was expected.
    """
    section = config.get(MACHINE) or {}
    if not isinstance(section, Mapping):
        raise UsageError(f"{MACHINE}={section!r}: expected a section")
    for key, (fits, expected) in _EXPECTED.items():
        if key in section and not fits(section[key]):
            raise UsageError(f"{MACHINE}.{key}={section[key]!r}: expected {expected}")
    if section.get("cuda_graph") and section.get("accelerator") == "cpu":
        raise UsageError("machine.cuda_graph=true needs a CUDA GPU: set machine=gpu, or machine.cuda_graph=false")
    for key, (fits, expected) in _STACK.items() if section.get("stack") else ():
        if not fits(section["stack"].get(key)):
            raise UsageError(f"{MACHINE}.stack.{key}={section['stack'].get(key)!r}: expected {expected}")


def on_gpu(section: Mapping[str, Any]) -> bool:
    """Return whether cells of a machine section run on a GPU; "auto" is one where there is one.

    Without torch, which the command does not import, an NVIDIA driver counts as a GPU.
    """
    name = section.get("accelerator")
    if name == "auto":
        torch = sys.modules.get("torch")
        return bool(torch.cuda.is_available()) if torch is not None else Path("/dev/nvidiactl").exists()
    return name in ("gpu", "cuda")


def count_devices(devices: int | Sequence[int]) -> int:
    """Return how many devices ``machine.devices`` names, a number or a list."""
    return devices if isinstance(devices, int) else len(devices)


def share_batches(accumulate: int, devices: int | Sequence[int], nodes: int) -> int:
    """Return how many of an optimiser step's ``accumulate`` batches each device computes.

    Raises:
        UsageError: the devices cannot share them evenly.
    """
    count = nodes * count_devices(devices)
    if accumulate % count:
        raise UsageError(
            f"training.accumulate={accumulate} batches a step cannot be shared by machine.devices={devices}: "
            f"make accumulate a multiple of {count} (and data.batch_size smaller, for the same step), "
            "or set machine.devices=1 and machine.workers to run several cells side by side"
        )
    return accumulate // count


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _not_negative(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(_word(item) for item in value)


def _truth(value: Any) -> bool:
    return type(value) is bool


def _one_of(words: Sequence[str]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, str) and value in words, f"{', '.join(words[:-1])} or {words[-1]}"


def _section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _devices(value: Any) -> bool:
    if not isinstance(value, list):
        return _whole(value)
    return all(type(item) is int and item >= 0 for item in value) and 0 < len(value) == len(set(value))


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "workers": (_whole, "a whole number of 1 or more"),
    "threads": (_or_null(_whole), "a whole number of 1 or more, or null (as many as torch takes)"),
    "devices": (_devices, "1 or more, or different GPUs such as [0, 2]"),
    "nodes": (_whole, "a whole number of 1 or more"),
    "accelerator": _one_of(ACCELERATORS),
    "strategy": _one_of(STRATEGIES),
    "data_workers": (_count, "a whole number of 0 or more"),
    "implementation": _one_of(IMPLEMENTATIONS),
    "tf32": (_truth, "false or true"),
    "recompute": (_truth, "false or true"),
    "cuda_graph": (_truth, "false or true"),
    "fused_optimizer": (_or_null(_truth), "null, false or true"),
    "compile": (lambda value: value in (False, True, "auto") and type(value) in (bool, str), "false, true or auto"),
    "checkpoint_every_seconds": (_or_null(_positive), "a number above 0, or null"),
    "checkpoint_every_steps": (_or_null(_whole), "a whole number of 1 or more, or null"),
    "progress_every_seconds": (_not_negative, "a number of 0 or more"),
    "logger": (lambda value: value is None or value in LOGGERS, f"null, {', '.join(LOGGERS[:-1])} or {LOGGERS[-1]}"),
    "log_every_steps": (_whole, "a whole number of 1 or more"),
    "stack": (_or_null(_section), "null, or a section with the keys over and most"),
    "cache": (_or_null(_word), "a folder, or null"),
    "data_root": (_or_null(_word), "a folder, or null"),
}
_STACK: dict[str, tuple[Callable[[Any], bool], str]] = {
    "over": (_words, "a list of keys, for example [seed]"),
    "most": (_whole, "a whole number of 1 or more"),
}
