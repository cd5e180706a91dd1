"""Every test has places of its own for data and for the caches of libraries."""

from pathlib import Path

import pytest

from paper_repro.base import files


@pytest.fixture(autouse=True)
def places_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(files, "DATA", tmp_path / "unused")
