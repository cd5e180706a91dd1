"""Starts and ends of commands, and errors that the user can mend."""

import multiprocessing
import time
from collections.abc import Sequence
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


def test_a_package_that_only_some_commands_need_is_named_with_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    def main(words: Sequence[str]) -> int:
        raise ModuleNotFoundError("No module named 'datasets'", name="datasets")

    assert run_main(main, []) == MISUSE
    assert capsys.readouterr().err == "error: datasets is not installed: pip install 'paper-repro[data]'\n"
