"""Processes that end with the one that started them, and what ended the others."""

import os
from pathlib import Path

import pytest

from paper_repro.base import processes


def test_a_worker_ends_with_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(processes.multiprocessing, "parent_process", lambda: None)
    processes._wait_for_parent()
    assert ended == []
    gone = processes.multiprocessing.Process()
    monkeypatch.setattr(gone, "join", lambda: None)
    monkeypatch.setattr(processes.multiprocessing, "parent_process", lambda: gone)
    processes._wait_for_parent()
    assert ended == [1]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("oom_kill 3", "oom_kill 4", "killed by signal 9: the kernel has killed for lack of memory meanwhile"),
        ("oom_kill 3", "oom_kill 3", "killed by signal 9: by another process, not for lack of memory"),
        ("pgfault 3", "oom_kill 3", "killed by signal 9: for lack of memory, or by another process"),
        (None, None, "killed by signal 9: for lack of memory, or by another process"),
    ],
)
def test_the_kernel_s_count_tells_what_signal_9_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, after: str | None, said: str
) -> None:
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(processes, "_COUNTS", counts)

    def kernel_says(line: str | None) -> None:
        if line is not None:
            counts.write_text(f"nr_free_pages 99\n{line}\nnr_unstable 0\n")

    kernel_says(before)
    kills = processes.memory_kills()
    kernel_says(after)
    assert processes.cause(-9, kills) == said
    assert processes.cause(-15, kills) == "killed by signal 15" and processes.cause(3, kills) == "exit code 3"
