"""What lies beside records: published with them, read by artifacts, and measured again where it could not be had."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT, UsageError
from paper_repro.base.files import sha256_of_bytes
from paper_repro.cells import measurements, records, runner
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tables import plan as plans
from paper_repro.tables.plan import Plan
from paper_repro.tables.publish import publish, render
from paper_repro.tests.support import synthetic
from paper_repro.tests.support.probes import STEPS_VARIABLE


def content_of(cell: PlannedCell, root: str = "") -> bytes:
    return f"{root} traced {cell.id}".encode()


def attached(root: Path, name: str = "trace.csv") -> Callable[[PlannedCell], Outcome]:
    """Finished outcomes, each with a file beside its record."""

    def outcome(cell: PlannedCell) -> Outcome:
        content = content_of(cell, root.name)
        path = record_path(root, cell.id).parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return Outcome(FINISHED, {"error": 0.5, "score": 1.0}, attachments={name: sha256_of_bytes(content)})

    return outcome


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return synthetic.plan(tmp_path)


def test_publishing_copies_what_lies_beside_the_records(plan: Plan, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, attached(runs))
    (record_path(runs, plan.cells[0].id).parent / "weights.safetensors").write_bytes(b"large")
    publish(plan, runs, results)
    for cell in plan.cells:
        home = record_path(results, cell.id).parent
        assert {path.name for path in home.iterdir()} == {"record.json", "trace.csv"}
        assert (home / "trace.csv").read_bytes() == content_of(cell, "runs")
        assert record_path(results, cell.id).read_bytes() == record_path(runs, cell.id).read_bytes()


def test_an_artifact_that_lies_outside_of_the_repository_is_not_published(tmp_path: Path) -> None:
    plan = synthetic.plan(tmp_path / "elsewhere")
    synthetic.fill(tmp_path / "runs", plan, attached(tmp_path / "runs"))
    with pytest.raises(UsageError, match=f"{plan.artifact.path} lies outside of the repository.*made/up.yaml"):
        publish(plan, tmp_path / "runs", tmp_path / "repository" / "results")
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("damage", ["changed", "absent"])
def test_a_damaged_attachment_is_refused_and_nothing_is_published(damage: str, plan: Plan, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, attached(runs))
    path = record_path(runs, plan.cells[-1].id).parent / "trace.csv"
    path.write_bytes(path.read_bytes()[:-1]) if damage == "changed" else path.unlink()
    message = (
        "not the file that the record beside it names" if damage == "changed" else "names this file, which is absent"
    )
    with pytest.raises(UsageError, match=f"{path}.*{message}"):
        publish(plan, runs, results)
    assert not results.exists()


PROBED = """
title: A probed model
source: {{paper: none, where: a test}}
experiment: cem/gaussian_process
axes:
  model:
    title: Model
    values:
      plain: {{label: Plain, overrides: {{model: cem/gp_plain}}}}
metrics:
  test_rmse: {{title: Test RMSE, unit: none, direction: lower, published: false}}
  score: {{title: Score, unit: none, direction: higher, digits: 2, published: false}}
scales:
  smoke:
    comparable: false
    seeds: [0]
    about: "Four steps."
    overrides:
      training.steps: 4
      data.num_train: 200
      data.num_test: 50
      data.num_features: 32
      machine.threads: 1
      machine.workers: 1
      optimizer._target_: paper_repro.tests.support.probes.LoggedAdamW
      +probes: {{one: {{_target_: paper_repro.tests.support.probes.Summing, needs: '{needed}'}}}}
"""


@pytest.mark.slow
def test_fill_measures_what_was_lacking_on_the_weights_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed, log, papers, runs = (tmp_path / name for name in ("gpt2", "steps.log", "papers", "runs"))
    monkeypatch.setenv(STEPS_VARIABLE, str(log))
    artifact = synthetic.load(papers, PROBED.format(needed=needed))
    probed = plans.make(artifact, "smoke")
    assert runner.run(probed.cells, runs, sys.stderr).exit_code == 0
    (cell,) = probed.cells
    before = records.read(record_path(runs, cell.id))
    assert before.unavailable == {"score": f"needs gpt2: write {needed}"} and log.read_text().count("step") == 4
    table, _ = render(probed, runs, None)
    assert table.grid().rows[0][2] == "n/a: needs gpt2"
    assert f"Score: n/a, needs gpt2: write {needed}" in table.notes()

    needed.write_text("0.75")
    command = [sys.executable, str(ROOT / "scripts" / "reproduce.py"), "made/up", "scale=smoke", f"runs={runs}"]
    environment = {**os.environ, "PAPER_REPRO_PAPERS": str(papers)}
    done = subprocess.run([*command, "--fill"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert records.read(record_path(runs, cell.id)) == before
    after = measurements.find(runs, cell).record
    assert after.metrics == before.metrics | {"score": 0.75} and after.unavailable == {}
    assert after.attachments == before.attachments and after.curves == before.curves
    assert records.attachment(runs, after, "total.txt") == f"{after.metrics['total']!r} 0".encode()
    assert "| Plain" in done.stdout and "0.75" in done.stdout and "n/a" not in done.stdout
    assert log.read_text().count("step") == 4
