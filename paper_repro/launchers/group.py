"""One command on several nodes: rank 0 runs it, the others train what it gives them."""

import contextlib
from collections.abc import Iterator

from paper_repro.base.errors import place


def followed() -> int | None:
    """Train with rank 0, if this process is another rank, until rank 0 is done; returns the exit code, or None."""
    own = place()
    if own is None or own.rank == 0:
        return None
    from paper_repro.training.launch import follow

    return follow(own)


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Keep the other ranks, if there are any, until the block ends."""
    own = place()
    if own is None:
        yield
        return
    from paper_repro.training import launch

    group = launch.group(own)
    store = group.connect(opened=True)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # they have ended already
            launch.end(group, store)
