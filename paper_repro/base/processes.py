"""Processes that end with the one that started them."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Let this process, which ``multiprocessing`` started, end at once when the one that started it has ended."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
