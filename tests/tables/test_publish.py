"""What lies beside records is published with them."""

from dataclasses import replace
from pathlib import Path

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells import records
from paper_repro.cells.records import record_path
from paper_repro.tables.publish import publish
from paper_repro.tests.support import synthetic


def test_publishing_copies_what_lies_beside_the_records(tmp_path: Path) -> None:
    plan, runs, results = synthetic.plan(tmp_path), tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, synthetic.attached(runs))
    (record_path(runs, plan.cells[0].id).parent / "weights.safetensors").write_bytes(b"large")
    publish(plan, runs, results)
    for cell in plan.cells:
        home = record_path(results, cell.id).parent
        assert {path.name for path in home.iterdir()} == {"record.json", "trace.csv"}
        assert (home / "trace.csv").read_bytes() == f"runs {cell.id}".encode()
        assert record_path(results, cell.id).read_bytes() == record_path(runs, cell.id).read_bytes()


@pytest.mark.parametrize("same", [True, False])
def test_what_another_probe_has_measured_stays_on_the_same_weights_alone(same: bool, tmp_path: Path) -> None:
    plan, runs, results = synthetic.plan(tmp_path), tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, synthetic.attached(runs))
    own = records.read(path := record_path(runs, plan.cells[0].id))
    more = {"probes": {"other": {"_target_": "paper_repro.probes.item_losses.ItemLosses"}}}
    metrics, curves = {**own.metrics, "test_items": 3.0}, {} if same else {"val_loss": {"step": [1], "value": [2.0]}}
    attachments = {**own.attachments, "items.json": sha256_of_bytes(b"[]")}
    published = replace(own, config={**own.config, **more}, metrics=metrics, curves=curves, attachments=attachments)
    records.write(place := results / path.relative_to(runs), published)
    (items := place.with_name("items.json")).write_bytes(b"[]")
    publish(plan, runs, results)
    assert ("test_items" in records.read(place).metrics) is items.exists() is same


def test_an_artifact_that_lies_outside_of_the_repository_is_not_published(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path / "elsewhere")
    synthetic.fill(tmp_path / "runs", plan, synthetic.attached(tmp_path / "runs"))
    with pytest.raises(UsageError, match=f"{plan.artifact.path} lies outside of the repository.*made/up.yaml"):
        publish(plan, tmp_path / "runs", tmp_path / "repository" / "results")
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("damage", ["not the file that the record beside it names", "names this file, which is absent"])
def test_a_damaged_attachment_is_refused_and_nothing_is_published(damage: str, tmp_path: Path) -> None:
    plan, runs, results = synthetic.plan(tmp_path), tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, synthetic.attached(runs))
    path = record_path(runs, plan.cells[-1].id).parent / "trace.csv"
    path.unlink() if "absent" in damage else path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=f"{path}.*{damage}"):
        publish(plan, runs, results)
    assert not results.exists()
