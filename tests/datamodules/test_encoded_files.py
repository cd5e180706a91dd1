"""Files that are decoded in other processes, which end with the one that started them."""

import os

import pytest

from paper_repro.datamodules import encoded_files


def test_a_worker_ends_with_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(encoded_files.multiprocessing, "parent_process", lambda: None)
    encoded_files._end_with_parent()
    assert ended == []
    gone = encoded_files.multiprocessing.Process()
    monkeypatch.setattr(gone, "join", lambda: None)
    monkeypatch.setattr(encoded_files.multiprocessing, "parent_process", lambda: gone)
    encoded_files._end_with_parent()
    assert ended == [1]
