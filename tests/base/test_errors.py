"""What ended a process, and that a worker ends with the process that started it."""

import multiprocessing
import time

import psutil
import pytest

from paper_repro.base import errors


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (3, 4, "killed by signal 9: the kernel has killed for lack of memory meanwhile"),
        (3, 3, "killed by signal 9: by another process, not for lack of memory"),
        (None, 3, "killed by signal 9: for lack of memory, or by another process"),
        (3, None, "killed by signal 9: for lack of memory, or by another process"),
    ],
)
def test_the_kernel_s_count_tells_what_signal_9_was(
    monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None, said: str
) -> None:
    monkeypatch.setattr(errors, "memory_kills", lambda: after)
    assert errors.cause(-9, before) == said
    assert errors.cause(-15, before) == "killed by signal 15" and errors.cause(3, before) == "exit code 3"


def _parent(connection: "multiprocessing.connection.Connection") -> None:
    child = multiprocessing.get_context("fork").Process(target=_child)
    child.start()
    connection.send(child.pid)
    time.sleep(60)


def _child() -> None:
    errors.end_with_parent()
    time.sleep(60)


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    parent = fork.Process(target=_parent, args=(theirs,))
    parent.start()
    child = psutil.Process(ours.recv())
    parent.kill()
    child.wait(20)
