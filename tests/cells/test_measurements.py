"""A probe that a config gained later measures the weights that are kept, and nothing is trained again."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base import identity
from paper_repro.cells import measurements, planned, records, runner
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED, Findings, Outcome
from paper_repro.tables.view import lack
from paper_repro.tests.support.probes import STEPS_VARIABLE
from paper_repro.tests.support.synthetic import PROVENANCE, write_record

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


def steps(log: Path) -> int:
    return log.read_text().count("step")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs folders: ``plain`` has a cell without probes, ``probed`` the same cell with one."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STEPS_VARIABLE, str(folder / "steps.log"))
        assert runner.run([cell()], folder / "plain", sys.stderr).exit_code == 0
        assert runner.run([cell(one={})], folder / "probed", sys.stderr).exit_code == 0
    assert steps(folder / "steps.log") == 8
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it all; ``steps.log`` counts further training steps."""
    shutil.copytree(trained, tmp_path / "runs")
    (tmp_path / "steps.log").touch()
    monkeypatch.setenv(STEPS_VARIABLE, str(tmp_path / "steps.log"))
    return tmp_path / "runs"


@pytest.mark.slow
def test_a_new_probe_measures_kept_weights_and_trains_nothing(runs: Path) -> None:
    plain, one = cell(), cell(one={})
    own, log = runs / "plain", runs.parent / "steps.log"
    assert plain.id == one.id and identity.probes(plain.config) == {} != identity.probes(one.config)
    before = record_path(own, plain.id).read_bytes()
    assert measurements.is_done(own, plain) and not measurements.is_done(own, one)

    assert runner.run([one], own, sys.stderr).exit_code == 0
    assert steps(log) == 0 and record_path(own, plain.id).read_bytes() == before
    found = measurements.find(own, one)
    assert found is not None and found.done
    total = found.record.metrics["total"]
    assert records.attachment(own, found.record, "total.txt") == f"{total!r} 0".encode()
    assert found.record.measured == {identity.probes(one.config)["one"]: ["total", "total.txt"]}
    training, probe = measurements.code_of(found.record)
    assert training == probe and found.record.provenance["probes"].keys() == {identity.probes(one.config)["one"]}
    together = measurements.find(runs / "probed", one)  # trained with the probe from the start
    assert together is not None and together.record.metrics == found.record.metrics


@pytest.mark.slow
def test_what_a_probe_measured_and_is_no_number_is_said_and_not_measured_again(runs: Path) -> None:
    own, content = runs / "plain", runs.parent / "content"
    content.write_text("nan")
    diverged = cell(one={"needs": str(content)})
    assert runner.run([diverged], own, sys.stderr).exit_code == 0
    found = measurements.find(own, diverged)
    assert found is not None and found.done
    assert found.record.unavailable == {"score": "not finite"} and "score" not in found.record.metrics
    assert found.record.measured == {identity.probes(diverged.config)["one"]: ["score", "total", "total.txt"]}
    assert lack({0: found.record}, "score") == "n/a: not finite"
    assert measurements.to_fill(own, diverged) == [], "nothing is lacking that could be brought"


@pytest.mark.slow
def test_fill_measures_what_was_lacking_on_the_weights_that_are_kept(runs: Path) -> None:
    own, needed = runs / "plain", runs.parent / "gpt2"
    lacking = cell(one={"needs": str(needed)})
    assert runner.run([lacking], own, sys.stderr).exit_code == 0
    before = measurements.find(own, lacking)
    assert before is not None and before.record.unavailable == {"score": f"needs gpt2: write {needed}"}
    needed.write_text("0.75")
    assert runner.run([lacking], own, sys.stderr, fill=True).exit_code == 0
    after = measurements.find(own, lacking)
    assert after is not None and after.record.metrics == before.record.metrics | {"score": 0.75}
    assert after.record.unavailable == {} and steps(runs.parent / "steps.log") == 0


@pytest.mark.slow
def test_a_probe_with_other_settings_is_another_measurement(runs: Path) -> None:
    one, other = cell(one={}), cell(one={"size": 100})
    own, log = runs / "probed", runs.parent / "steps.log"
    lacking = measurements.find(own, other)
    assert lacking is not None and lacking.lacking == ["one"] and "total" not in lacking.record.metrics
    assert "test_rmse" in lacking.record.metrics
    assert runner.run([other], own, sys.stderr).exit_code == 0
    assert steps(log) == 0
    for planned_cell, size in ((one, None), (other, 100)):
        found = measurements.find(own, planned_cell)
        assert found is not None and found.done
        content = records.attachment(own, found.record, "total.txt")
        assert content is not None and len(content) == (size or len(content.rstrip()))


@pytest.mark.slow
def test_a_probe_that_fails_leaves_weights_and_record_as_they_are(runs: Path) -> None:
    own, log, broken = runs / "plain", runs.parent / "steps.log", cell(one={"file": "../up"})
    before = record_path(own, broken.id).read_bytes()
    result = runner.run([broken], own, sys.stderr)
    assert result.exit_code == 1 and result.by_status == {"not measured": 1}
    assert record_path(own, broken.id).read_bytes() == before and steps(log) == 0
    assert measurements.is_done(own, cell())


@pytest.mark.slow
def test_without_weights_the_cell_is_trained_again(runs: Path) -> None:
    own, log = runs / "plain", runs.parent / "steps.log"
    folder = record_path(own, cell().id).parent
    for path in [*folder.glob("weights*"), *(folder / "checkpoints").glob("*")]:
        path.unlink()
    assert runner.run([cell(one={})], own, sys.stderr).exit_code == 0
    assert steps(log) == 4
    found = measurements.find(own, cell(one={}))
    assert found is not None and found.done


def measure(root: Path, own: PlannedCell, **metrics: float) -> None:
    measurements.write(root, own, "one", Findings(metrics), 1.0, PROVENANCE)


FORGED: dict[str, dict[str, Any]] = {
    "other cell": {"cell": "f" * 16},
    "other probe": {"config": {"probes": {"one": {"_target_": SUMMING, "size": 3}}}},
}


@pytest.mark.parametrize("damage", ["bit", *FORGED])
def test_a_damaged_measurement_counts_as_absent(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    own = cell(one={})
    write_record(tmp_path, cell(), Outcome(FINISHED, {"test_rmse": 1.0}))
    path = measurements.measurement_path(tmp_path, own.id, identity.probes(own.config)["one"])
    measure(tmp_path, own, total=1.0)
    fields = json.loads(path.read_bytes()) | FORGED.get(damage, {})
    del fields["sha256"]
    content = records.sealed(fields)
    if damage == "bit":
        content = content.replace(b'"total":1.0', b'"total":1.5')
    path.write_bytes(content)
    found = measurements.find(tmp_path, own)
    assert found is not None and found.lacking == ["one"] and "total" not in found.record.metrics
    assert "measures again" in caplog.text and str(path) in caplog.text


def test_what_a_probe_could_not_give_goes_with_its_next_measurement(tmp_path: Path) -> None:
    own = cell(one={})
    lacking = {"score": "needs a file", "more": "needs a file", "other": "of another probe"}
    outcome = Outcome(FINISHED, {"test_rmse": 1.0}, unavailable=lacking, measured={"one": ["score", "more"]})
    write_record(tmp_path, own, outcome)
    measure(tmp_path, own, score=2.0)
    found = measurements.find(tmp_path, own)
    assert found is not None and found.done
    assert found.record.unavailable == {"other": "of another probe"} and found.record.metrics["score"] == 2.0


def test_a_record_joined_with_another_keeps_what_each_has_measured(tmp_path: Path) -> None:
    def record(name: str, value: float) -> records.Record:
        origin = {**PROVENANCE, "commit": name[0] * 40}
        config = identity.recorded(cell(**{name: {"metric": name, "file": f"{name}.txt"}}).config)
        outcome = Outcome(FINISHED, {"test_rmse": 1.0, name: value}, measured={name: [name]})
        return records.from_outcome(cell().id, config, outcome, origin)

    both = measurements.joined(record("a", 1.0), record("b", 2.0))
    assert both.metrics == {"test_rmse": 1.0, "a": 1.0, "b": 2.0}
    assert both.config["probes"].keys() == {"a", "b"} and len(both.measured) == 2
    assert [code["commit"] for code in measurements.code_of(both)] == ["a" * 40, "b" * 40]
    records.write(record_path(tmp_path, both.cell), both)
    assert records.find(tmp_path, both.cell) == both


def test_a_measurement_that_none_would_read_is_not_written(tmp_path: Path) -> None:
    own = cell(one={})
    with pytest.raises(ValueError, match="the limit is 20000"):
        measure(tmp_path, own, **{f"a metric of number {number}": 1.5 for number in range(900)})
    with pytest.raises(ValueError, match=r"attachment '\.\./up'"):
        measurements.write(tmp_path, own, "one", Findings(attachments={"../up": b""}), 1.0, PROVENANCE)
    assert not list(tmp_path.iterdir())
