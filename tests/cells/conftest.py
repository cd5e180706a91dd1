from pathlib import Path

import pytest

from paper_repro.tests.support.slow_task import LOG_VARIABLE


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which slow tasks note what they do."""
    path = tmp_path / "task.log"
    monkeypatch.setenv(LOG_VARIABLE, str(path))
    return path
