"""What ended a process, a worker that ends with the process that started it, and what a command does not start with."""

import multiprocessing
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paper_repro.base import errors
from paper_repro.base.errors import MISUSE, RESULTS, UsageError, run_main, runs_folder


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


def test_the_reference_is_no_folder_of_runs_and_a_cache_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "link").symlink_to(RESULTS)
    for folder in (RESULTS, tmp_path / "link"):
        with pytest.raises(UsageError, match="committed reference"):
            runs_folder(str(folder))
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert run_main(lambda words: pytest.fail("it was called"), []) == MISUSE
    said = capsys.readouterr().err
    assert said.startswith(f"error: TORCHINDUCTOR_CACHE_DIR={tmp_path}/file/cache: it cannot be made")
