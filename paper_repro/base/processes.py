"""Processes that end with the one that started them."""

import multiprocessing
import os
import threading


class Lifeline:
    """A pipe that closes when the process that made it has ended; those forked from it hold on to it."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def follow(self) -> None:
        """Let this process, forked from the one that made the pipe, end at once when that one has ended."""
        os.close(self._write)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        os.read(self._read, 1)
        os._exit(1)


def end_with_parent() -> None:
    """Let this process, which ``multiprocessing`` started, end at once when the one that started it has ended."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
