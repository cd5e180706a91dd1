"""A cell before it is run: its identity, the job that it belongs to, and checks of its config that need no torch."""

import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from paper_repro.base import configs, identity
from paper_repro.base.configs import LARGEST, TARGET
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.files import absent, find_data, sha256_of_file
from paper_repro.base.identity import AUTO, MACHINE
from paper_repro.cells.tasks import WEIGHTS, Cell

Key = tuple[tuple[str, str], ...]
"""The place of a cell in its artifact: (axis, value) pairs in the artifact's order of axes."""

IMPLEMENTATIONS = ("auto", "reference")
"""Those of ``kernels.preferences``, which cells do not import."""
CSV, TENSORBOARD, WANDB = "csv", "tensorboard", "wandb"
FOLDER = "logs"
"""Where a cell's points lie, in the cell's own folder."""
TRAINING = "paper_repro.training.fit.Fit"
"""The task that trains; the training section of any other is its own."""
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")
"""Lightning's words for what a training computes in; "mixed" keeps the weights in float32."""
TAKEN = ("record.json", "begun.json", "log.txt", "logs", "lease", WEIGHTS, f"{WEIGHTS}.sha256")
"""Names in a cell's folder that no attachment may have."""
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
"""What a cell or a file beside its record may be called."""


# Cells.


@dataclass(frozen=True)
class PlannedCell(Cell):
    """A cell and its place in the artifact."""

    key: Key
    seed: int
    settings: str
    """The hash of what makes its weights, but for the content of the files that ``data.files`` names; the id is the
    hash with the files, and the two are equal where no files are read (``base.identity``)."""
    missing: str = ""
    """What data is absent, and how to get it; such a cell cannot be run."""

    @property
    def name(self) -> str:
        """The values of its axes and its seed, for people."""
        return " ".join([*(value for _, value in self.key), f"seed {self.seed}"])

    @property
    def place(self) -> str:
        """The values of its axes, as ``--config`` takes them."""
        return ",".join(f"{axis}={value}" for axis, value in self.key)


def single(experiment: str, overrides: Sequence[str], seed: int) -> PlannedCell:
    """Return one cell outside any artifact."""
    return plan_cell((), seed, configs.compose(experiment, overrides, seed))


def plan_cell(key: Key, seed: int, config: dict[str, Any]) -> PlannedCell:
    """Give a resolved config, whose sections it checks, its identity, or say which data it lacks."""
    MachineSettings.of(config.get(MACHINE))
    check_training(config)
    settings, hashes = identity.settings(config), dict[str, str]()
    for role, found in file_hashes(config).items():
        if found is None:
            command, name = identity.reader_of(config).get("prepare") or "", identity.files_of(config)[role]
            root = (config.get(MACHINE) or {}).get("data_root")
            return PlannedCell(settings, config, key, seed, settings, absent(name, root, command))
        hashes[role] = found
    return PlannedCell(identity.with_files(settings, hashes), config, key, seed, settings)


def file_hashes(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the SHA-256 of each file that a config's ``data.files`` names, by role; None where it is absent."""
    root = (config.get(MACHINE) or {}).get("data_root")
    found = {role: find_data(name, root) for role, name in sorted(identity.files_of(config).items())}
    return {role: _sha256(path) if path is not None and path.is_file() else None for role, path in found.items()}


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path.resolve(), status.st_size, status.st_mtime_ns)


@functools.cache
def _sha256_of(path: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file of this size and time of change, read once in a process."""
    return sha256_of_file(path)


def check_attachment_name(name: Any) -> None:
    """Raise UsageError unless a file of that name can lie in a cell's folder and nowhere else, and is not taken."""
    if not isinstance(name, str) or FILE_NAME.fullmatch(name) is None:
        raise UsageError(
            f"attachment {str(name)[:100]!r}: expected a file name of one part, of letters, digits and _ . + -, "
            "that begins with a letter, a digit or _"
        )
    if name.lower() in TAKEN or name.lower().startswith("step-"):
        raise UsageError(f"attachment {name!r}: a name that the cell's folder needs itself; give it another")


# Jobs.


@dataclass(frozen=True, eq=False)
class Job:
    """Cells that one worker runs together, in the order of the plan."""

    cells: tuple[PlannedCell, ...]

    @property
    def label(self) -> str:
        """What the cells have in common: values of axes, and the seeds."""
        shared = [value for axis, value in self.cells[0].key if all((axis, value) in cell.key for cell in self.cells)]
        seeds = sorted({cell.seed for cell in self.cells})
        if len(seeds) == 1:
            return " ".join([*shared, f"seed {seeds[0]}"])
        row = seeds[-1] - seeds[0] == len(seeds) - 1
        return " ".join([*shared, "seeds", f"{seeds[0]}-{seeds[-1]}" if row else ",".join(map(str, seeds))])


def jobs(cells: Sequence[PlannedCell]) -> list[Job]:
    """Group cells that differ only in what their config's ``machine.stack.over`` allows, at most ``most`` together.

    The grouping depends on the plan alone, so that a job that was cut off is found again.
    """
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        stack = cell.machine.get("stack")
        shape = identity.fingerprint(configs.without(cell.config, [MACHINE, *stack["over"]])) if stack else cell.id
        groups.setdefault(shape, []).append(cell)
    result = []
    for members in groups.values():
        stack = members[0].machine.get("stack") or {"most": 1}
        # Even shares: 20 cells at most 12 are 10 and 10, so that two workers end together.
        count = -(-len(members) // int(stack["most"]))
        size = -(-len(members) // count)
        result += [Job(tuple(members[start : start + size])) for start in range(0, len(members), size)]
    return result


# The forms of values.


def fits(value: Any, form: Any) -> bool:
    """Return whether a value has a form: the longest length of a text, a word, a pattern, a type (``int`` is a count,
    ``float`` any finite number), a tuple of forms of which one fits, ``[form]`` for a list, a dict of forms for known
    keys, ``{...: form}`` for any keys, or a predicate.
    """
    match form:
        case int():
            return isinstance(value, str) and len(value) <= form
        case str() | None:
            return bool(value == form)
        case re.Pattern():
            return isinstance(value, str) and form.fullmatch(value) is not None
        case type():
            whole, number = type(value) is int, type(value) is float
            if form is int:
                return whole and 0 <= value <= LARGEST
            if form is float:
                return (whole and abs(value) <= LARGEST) or (number and math.isfinite(value))
            return isinstance(value, form)
        case tuple():
            return any(fits(value, one) for one in form)
        case [item]:
            return isinstance(value, list | tuple) and all(fits(one, item) for one in value)
        case dict():
            known = isinstance(value, Mapping) and (... in form or {*value} <= {*form})
            return known and all(
                isinstance(key, str) and fits(item, form[... if ... in form else key]) for key, item in value.items()
            )
    return bool(form(value))


def not_negative(value: Any) -> bool:
    return fits(value, float) and value >= 0


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _positive(value: Any) -> bool:
    return fits(value, float) and value > 0


def _gpus(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) == len({*map(str, value)}) and fits(value, [int])


def _stack(value: Any) -> bool:
    return isinstance(value, Mapping) and fits(value.get("over"), [str]) and _whole(value.get("most"))


_SAID: dict[Any, str] = {
    None: "null",
    bool: "false or true",
    str: "a text",
    Mapping: "a section",
    _whole: "a whole number of 1 or more",
    int: "a whole number of 0 or more",
    _positive: "a number above 0",
    not_negative: "a number of 0 or more",
    _gpus: "different GPUs such as [0, 2]",
    _stack: "a section such as {over: [seed], most: 2}",
}


def _key(*forms: Any, default: Any = MISSING) -> Any:
    """Return a key of a section, which holds what fits one of the forms."""
    return field(default=default, metadata={"forms": forms})


def _check(section: str, settings: Any) -> None:
    for key in fields(settings):
        value, forms = getattr(settings, key.name), key.metadata["forms"]
        if not fits(value, forms):
            expected = " or ".join(_SAID.get(form, form) for form in forms)
            raise UsageError(f"{section}.{key.name}={value!r}: expected {expected}")


# The machine section.


@dataclass(frozen=True)
class MachineSettings:
    """The ``machine`` section (conf/machine/cpu.yaml); UsageError: a value that no machine can give."""

    accelerator: str = _key("cpu", "gpu", "cuda", AUTO, default="cpu")
    devices: int | list[int] = _key(_whole, _gpus, default=1)  # noqa: RUF009
    nodes: int = _key(_whole, default=1)
    workers: int | str = _key(_whole, AUTO, default=1)
    threads: int | None = _key(_whole, None, default=None)
    data_workers: int = _key(int, default=0)
    compile: bool | str = _key(bool, AUTO, default=False)
    tf32: bool = _key(bool, default=False)
    implementation: str = _key(*IMPLEMENTATIONS, default=AUTO)
    recompute: bool = _key(bool, default=False)
    cuda_graph: bool | str = _key(bool, AUTO, default=False)
    micro_batch: int | str | None = _key(_whole, None, AUTO, default=None)
    fused_optimizer: bool | None = _key(bool, None, default=None)
    checkpoint_every_seconds: float | None = _key(_positive, None, default=20)
    checkpoint_every_steps: int | None = _key(_whole, None, default=None)
    progress_every_seconds: float = _key(not_negative, default=0.5)
    logger: str | None = _key(CSV, TENSORBOARD, WANDB, None, default=None)
    log_every_steps: int = _key(_whole, default=10)
    stack: Mapping[str, Any] | None = _key(_stack, None, default=None)
    cache: str | None = _key(str, None, default=None)
    data_root: str | None = _key(str, None, default=None)
    log_folder: str | None = _key(str, None, default=None)
    """The folder of the cell, which the worker knows."""

    def __post_init__(self) -> None:
        _check(MACHINE, self)
        if self.cuda_graph is True and self.accelerator == "cpu":
            raise UsageError("machine.cuda_graph=true needs a CUDA GPU: set machine=gpu, or machine.cuda_graph=false")

    @classmethod
    def of(cls, section: Mapping[str, Any] | None) -> Self:
        """Read a config's section, which may be absent."""
        return cls(**{key: value for key, value in (section or {}).items() if key in cls.__dataclass_fields__})


def on_gpu(section: Mapping[str, Any]) -> bool:
    """Return whether cells of a machine section run on a GPU; while torch is not imported, a driver counts as one."""
    name = section.get("accelerator")
    if name == "auto":
        torch = sys.modules.get("torch")
        return bool(torch.cuda.is_available()) if torch is not None else Path("/dev/nvidiactl").exists()
    return name in ("gpu", "cuda")


def cards() -> list[str]:
    """Return the GPUs that this process may use, as $CUDA_VISIBLE_DEVICES names them; else the driver's numbers."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    return [str(number) for number in range(len([*Path("/dev").glob("nvidia[0-9]*")]))]


def count_devices(devices: int | Sequence[int]) -> int:
    """Return how many devices ``machine.devices`` names, a number or a list."""
    return devices if isinstance(devices, int) else len(devices)


# The training section.


@dataclass(frozen=True)
class TrainingSettings:
    """The ``training`` section."""

    steps: int = _key(_whole)
    clip_norm: float | None = _key(_positive, None, default=None)
    """null: no clipping."""
    precision: str = _key(*PRECISIONS, default="32-true")
    accumulate: int = _key(_whole, default=1)
    """Batches per optimiser step, over all devices; the gradient is that of the mean over their targets."""
    evaluate_every: int | None = _key(_whole, None, default=None)
    """Optimiser steps between evaluations; null: one at the end."""
    evaluation_batches: int | None = _key(_whole, None, default=None)
    """Batches of each split that the evaluations of the curves take; null: all.  The metrics at the end are of all."""
    keep: str | None = _key(str, None, default=None)
    """The metric at whose lowest value the weights are kept, for example val_loss; null: the last weights."""
    callbacks: Mapping[str, Any] | None = _key(Mapping, None, default=None)
    """Callbacks of Lightning by name, each a section with a ``_target_``."""

    def __post_init__(self) -> None:
        _check("training", self)
        if self.evaluation_batches is not None and self.keep is not None:
            raise UsageError(
                f"training.keep={self.keep}: kept weights are chosen by whole evaluations; "
                "set training.evaluation_batches=null"
            )


def read_training(section: Mapping[str, Any]) -> TrainingSettings:
    """Return the ``training`` section, every key known."""
    valid = inspect.signature(TrainingSettings).parameters
    for key in section:
        if key not in valid:
            raise UsageError(f"unknown key 'training.{key}'{nearest(str(key), valid)}")
    if "steps" not in section:
        raise UsageError("training.steps is missing: the number of optimiser steps")
    return TrainingSettings(**section)


def check_training(config: Mapping[str, Any]) -> None:
    """Check what needs no torch of a cell that trains: its ``training`` section, learning rate and batch size."""
    if (config.get("task") or {}).get(TARGET) != TRAINING or "training" not in config:
        return
    accumulate = read_training(config["training"]).accumulate
    machine = config.get(MACHINE) or {}
    rate = (config.get("optimizer") or {}).get("lr")
    if isinstance(rate, int | float) and rate < 0:
        raise UsageError(f"optimizer.lr={rate:g}: expected a learning rate of 0 or more")
    size = (config.get("data") or {}).get("batch_size")
    if size is not None and not _whole(size):
        raise UsageError(f"data.batch_size={size!r}: expected a whole number of 1 or more")
    count = machine.get("nodes", 1) * count_devices(machine.get("devices", 1))
    if size is not None and accumulate % count and size < count:
        raise UsageError(
            f"machine.devices={machine.get('devices')}: {accumulate} batches of {size} rows a step are too few for "
            f"{count} devices: set fewer, and machine.workers to run several cells side by side"
        )
