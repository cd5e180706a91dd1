"""Whether torchrun or srun started this process, as which of how many that train a cell together."""

import os
from dataclasses import dataclass

from paper_repro.base.errors import UsageError

STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "fsdp")
"""How these processes may hold a model."""
BY_TORCHRUN, BY_SRUN = "torchrun", "srun"


@dataclass(frozen=True)
class Place:
    """One of the processes that train a cell together."""

    by: str
    rank: int
    count: int


def place() -> Place | None:
    """Return this process's place; None where it was started alone."""
    found = os.environ
    if "TORCHELASTIC_RUN_ID" in found:
        own = Place(BY_TORCHRUN, int(found["RANK"]), int(found["WORLD_SIZE"]))
    elif "SLURM_STEP_ID" in found and found.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        own = Place(BY_SRUN, int(found.get("SLURM_PROCID", 0)), int(found.get("SLURM_STEP_NUM_TASKS", 1)))
    else:
        return None
    return own if own.count > 1 else None


def check_started(nodes: int) -> None:
    """Check whether a command that trains on several nodes was started on them.

    Raises:
        UsageError: this process was started alone.
    """
    if nodes > 1 and place() is None:
        raise UsageError(
            f"machine.nodes={nodes}: the same command has to be started on every node, by torchrun or srun "
            "(docs/cluster.md)"
        )
