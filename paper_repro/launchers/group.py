"""One command on several nodes: whether torchrun or srun started this process, as which of how many."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

BY_TORCHRUN, BY_SRUN = "torchrun", "srun"


class Place(NamedTuple):
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


def followed() -> int | None:
    """Train with rank 0, if this process is another rank, until rank 0 is done; returns the exit code, or None."""
    own = place()
    if own is None or own.rank == 0:
        return None
    from paper_repro.training.nodes import follow

    return follow(own)


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Keep the other ranks, if there are any, until the block ends."""
    own = place()
    if own is None:
        yield
        return
    from paper_repro.training import nodes

    store = nodes.group(own).connect(opened=True)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # they have ended already
            nodes.end(store)
