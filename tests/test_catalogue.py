from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro import catalogue
from paper_repro.catalogue import EXTRA_PAPERS
from paper_repro.errors import UsageError
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.synthetic import ARTIFACT


def message_of(load: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        load()
    return str(caught.value)


def test_an_unknown_artifact_is_answered_with_the_nearest() -> None:
    assert "(did you mean 'cem/table3'?)" in message_of(lambda: catalogue.load("cem/tabel3"))


def test_a_further_folder_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = synthetic.write_artifact(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    assert catalogue.find()["made/up"] == path
    assert catalogue.load("made/up").title == "Old against new"
    assert "cem/table3" in catalogue.find()


def test_a_duplicate_id_names_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = tmp_path / "cem" / "table3.yaml"
    twin.parent.mkdir()
    twin.write_text(ARTIFACT)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    found = message_of(catalogue.find)
    assert "duplicate artifact id 'cem/table3'" in found
    assert str(twin) in found and str(catalogue.PAPERS / "cem" / "table3.yaml") in found


def test_a_further_folder_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path / "absent"))
    assert "absent', which is no folder" in message_of(catalogue.find)


@pytest.mark.parametrize("name", sorted(catalogue.find()))
def test_every_shipped_artifact_loads_and_its_computed_claims_exist(name: str) -> None:
    artifact = catalogue.load(name)
    assert artifact.source.where and artifact.points()
    companion = artifact.companion()
    for claim in artifact.claims:
        computed = getattr(claim.predicate, "name", None)
        if computed is not None:
            assert callable(getattr(companion, f"judge_{computed}", None)), claim.id
