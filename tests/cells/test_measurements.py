"""A probe that a config gained later measures the weights that are kept, and nothing is trained again."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base import identity
from paper_repro.cells import measurements, planned, records, runner
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Outcome
from paper_repro.tests.support.probes import STEPS_VARIABLE

SUMMING = "paper_repro.tests.support.probes.Summing"
SMALL = [
    "training.steps=4",
    "data.num_train=200",
    "data.num_test=50",
    "data.num_features=32",
    "machine.workers=1",
    "optimizer._target_=paper_repro.tests.support.probes.LoggedAdamW",
]


def cell(**probes: dict[str, Any]) -> PlannedCell:
    nodes = {name: {"_target_": SUMMING, **node} for name, node in probes.items()}
    own = planned.single("cem/gaussian_process", SMALL, 0)
    return planned.plan_cell((), 0, {**own.config, "probes": nodes})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "steps.log"
    monkeypatch.setenv(STEPS_VARIABLE, str(path))
    return path


def steps(log: Path) -> int:
    return log.read_text().count("step")


def test_a_new_probe_measures_kept_weights_and_trains_nothing(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    plain, one = cell(), cell(one={})
    assert plain.id == one.id and plain.probes == {} != one.probes
    assert runner.run([plain], runs, sys.stderr).exit_code == 0
    trained = record_path(runs, plain.id).read_bytes()
    assert measurements.is_done(runs, plain) and not measurements.is_done(runs, one)

    assert runner.run([one], runs, sys.stderr).exit_code == 0
    assert steps(log) == 4 and record_path(runs, plain.id).read_bytes() == trained
    found = measurements.find(runs, one)
    assert found is not None and found.done
    total = found.record.metrics["total"]
    assert records.attachment(runs, found.record, "total.txt") == f"{total!r} 0".encode()
    assert found.record.measured == {one.probes["one"]: ["total", "total.txt"]}

    # Trained with the probe from the start it measures the same.
    whole = tmp_path / "whole"
    assert runner.run([one], whole, sys.stderr).exit_code == 0
    together = measurements.find(whole, one)
    assert together is not None and together.record.metrics == found.record.metrics
    assert together.record.measured == found.record.measured


def test_a_probe_with_other_settings_is_another_measurement(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    one, other = cell(one={}), cell(one={"size": 100})
    assert runner.run([one], runs, sys.stderr).exit_code == 0
    lacking = measurements.find(runs, other)
    assert lacking is not None and lacking.lacking == ["one"] and "total" not in lacking.record.metrics
    assert "test_rmse" in lacking.record.metrics
    assert runner.run([other], runs, sys.stderr).exit_code == 0
    assert steps(log) == 4
    for planned_cell, size in ((one, 0), (other, 100)):
        found = measurements.find(runs, planned_cell)
        assert found is not None and found.done
        content = records.attachment(runs, found.record, "total.txt")
        assert content is not None and (len(content) == size or size == 0)


def test_without_weights_the_cell_is_trained_again(tmp_path: Path, log: Path) -> None:
    runs = tmp_path / "runs"
    assert runner.run([cell()], runs, sys.stderr).exit_code == 0
    for path in record_path(runs, cell().id).parent.glob("weights*"):
        path.unlink()
    for path in (record_path(runs, cell().id).parent / "checkpoints").glob("*"):
        path.unlink()
    assert runner.run([cell(one={})], runs, sys.stderr).exit_code == 0
    assert steps(log) == 8
    found = measurements.find(runs, cell(one={}))
    assert found is not None and found.done


@pytest.mark.parametrize("damage", ["bit", "other cell", "other probe", "unsealed"])
def test_a_damaged_measurement_counts_as_absent(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    own = cell(one={})
    config = identity.recorded({**own.config, "probes": {}})
    origin = {"commit": "a" * 40, "dirty": False, "versions": {}, "device": "x"}
    record = records.from_outcome(own.id, config, Outcome(FINISHED, {"test_rmse": 1.0}), origin)
    records.write(record_path(tmp_path, own.id), record)
    measurement = measurements.Measurement(
        own.id, own.probes["one"], "one", own.config["probes"]["one"], {"total": 1.0}, {}, {}, 1.0
    )
    if damage == "other cell":
        measurement = dataclasses.replace(measurement, cell="f" * 16)
    if damage == "other probe":
        measurement = dataclasses.replace(measurement, config={"_target_": SUMMING, "size": 3})
    path = measurements.measurement_path(tmp_path, own.id, own.probes["one"])
    path.parent.mkdir(parents=True)
    content = records.sealed(dataclasses.asdict(measurement))
    if damage == "bit":
        content = content.replace(b'"total":1.0', b'"total":1.5')
    if damage == "unsealed":
        content = b"{}"
    path.write_bytes(content)
    found = measurements.find(tmp_path, own)
    assert found is not None and found.lacking == ["one"] and "total" not in found.record.metrics
    assert "measures again" in caplog.text and str(path) in caplog.text


def test_a_record_joined_with_another_keeps_what_each_has_measured(tmp_path: Path) -> None:
    origin = {"commit": "a" * 40, "dirty": False, "versions": {}, "device": "x"}

    def record(name: str, value: float) -> records.Record:
        config = identity.recorded(cell(**{name: {"metric": name, "file": f"{name}.txt"}}).config)
        outcome = Outcome(FINISHED, {"test_rmse": 1.0, name: value}, measured={name: [name]})
        return records.from_outcome(cell().id, config, outcome, origin)

    both = measurements.joined(record("one", 1.0), record("two", 2.0))
    assert both.metrics == {"test_rmse": 1.0, "one": 1.0, "two": 2.0}
    assert both.config["probes"].keys() == {"one", "two"} and len(both.measured) == 2
