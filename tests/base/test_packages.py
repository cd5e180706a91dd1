from pathlib import Path

import pytest

from paper_repro.base.configs import PACKAGES, own_packages


def test_a_link_gives_a_package_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "lab-2.1").mkdir()
    (link := tmp_path / "linked_lab").symlink_to(folder)
    monkeypatch.setenv(PACKAGES, f"{link}/")
    assert own_packages()["linked_lab"] == folder.resolve()
