"""A worker that ends with the process that started it, and a folder that is not one of runs."""

import multiprocessing
import time
from pathlib import Path

import psutil
import pytest

from paper_repro.base import errors
from paper_repro.base.errors import MISUSE, RESULTS, UsageError, run_main, runs_folder


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


def test_the_reference_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(RESULTS)
    for folder in (RESULTS, tmp_path / "link"):
        with pytest.raises(UsageError, match="committed reference"):
            runs_folder(str(folder))


def test_a_cache_of_the_compiler_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert run_main(lambda words: pytest.fail("it was called"), []) == MISUSE
    assert f"TORCHINDUCTOR_CACHE_DIR={tmp_path}/file/cache: it cannot be made" in capsys.readouterr().err
