"""Processes that end with the one that started them."""

import os

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
