"""Processes that end with the one that started them, and what ended those that did not end by themselves."""

import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path

_COUNTS = Path("/proc/vmstat")


def end_with_parent() -> None:
    """Let this process, which ``multiprocessing`` started, end at once when the one that started it has ended."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def memory_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since it started; None where it counts none.

    Linux counts them in /proc/vmstat, for the whole computer and for every container on it.
    """
    try:
        found = re.search(r"^oom_kill (\d+)$", _COUNTS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def cause(code: int, kills_before: int | None) -> str:
    """Return what ended a process.

    Args:
        code: its exit code, or minus the signal that killed it.
        kills_before: what ``memory_kills`` returned when it started.
    """
    if code != -signal.SIGKILL:
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    kills = memory_kills()
    if kills is None or kills_before is None:
        return "killed by signal 9: for lack of memory, or by another process"
    if kills > kills_before:
        return "killed by signal 9: the kernel has killed for lack of memory meanwhile"
    return "killed by signal 9: by another process, not for lack of memory"
