"""What is published is held against what today's code computes."""

import tempfile
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from paper_repro.base import files
from paper_repro.base.errors import RESULTS
from paper_repro.cells import records, verify
from paper_repro.cells.planned import PlannedCell
from paper_repro.cells.verify import DIFFERS, NOT_VERIFIED, REPRODUCES
from paper_repro.models.cem import GatedMLP
from paper_repro.scripts import planned_cells
from paper_repro.tables import plan, spec


@pytest.fixture(scope="module")
def cell() -> PlannedCell:
    """A published cell that trains 3,000 steps."""
    cells = plan.make(spec.load("cem/table3"), "cpu", seeds=[0]).cells
    return next(cell for cell in cells if cell.key == (("kernel", "rbf"), ("model", "t1")))


@pytest.mark.slow
def test_cells_reproduce_but_for_the_one_whose_model_was_changed(call, monkeypatch, tmp_path):
    forward = GatedMLP.forward

    def larger(self: GatedMLP, x: Tensor) -> Tensor:
        return forward(self, x) * 1.01

    monkeypatch.setattr(GatedMLP, "forward", larger)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, _ = call("reproduce.py", "cem/table3", "ebt/tableD1", "--verify")
    assert code == 1
    rows = {line.split()[1]: line for line in out.splitlines()[2:]}
    assert len(rows) == 4
    assert rows["kernel=rbf,model=gated"].endswith("differs")
    assert rows["kernel=rbf,model=t1"].endswith("reproduces")
    assert "30 steps in 1 point" in rows["kernel=rbf,model=t1"]
    assert rows["size=xxs,model=transformer"].endswith("reproduces")
    assert list(tmp_path.iterdir()) == [], "what was trained is deleted"


@pytest.mark.parametrize(
    ("double", "expected"),
    [
        ([2.0, 3.0], (DIFFERS, "90 steps in 2 points")),
        ([2.0, 3.1], (REPRODUCES, "30 steps in 1 point")),
        ([2.1, 3.1], (NOT_VERIFIED, "")),
    ],
)
def test_a_chaotic_training_is_compared_until_rounding_alone_changes_it(cell, monkeypatch, double, expected):
    curve = {"step": [30, 90], "value": [2.0, 3.01]}
    record = records.find(RESULTS, cell.id)
    assert record is not None
    monkeypatch.setattr(records, "find", lambda *_: replace(record, curves={"training_loss": curve}))
    monkeypatch.setattr(verify, "FEWEST_STEPS", 40)

    def run(asked: PlannedCell, steps: int) -> tuple[None, list[float]]:
        assert steps == 90
        first, second = double if asked.config["training"]["precision"] == "64-true" else [2.0, 3.0]
        # The steps between belong to a point that the record lacks.
        return None, [first] * 30 + [7.0] * 30 + [second] * 30

    monkeypatch.setattr(verify, "_run", run)
    found = verify.verify(cell, RESULTS)
    assert (found.verdict, found.compared) == expected


def test_a_metric_that_is_computed_otherwise_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, one = planned_cells.choose(["cem/table1"], None, RESULTS)[0]
    record = records.find(RESULTS, one.id)
    assert record is not None
    found = verify.verify(one, RESULTS)
    assert (found.verdict, found.difference) == (REPRODUCES, 0.0)
    name, count = max(record.metrics.items(), key=lambda item: item[1])
    assert count > 1e7
    for changed, verdict in (
        ({name: count + 1}, DIFFERS),  # a count is exact
        ({name: count + 0.5}, REPRODUCES),  # what is computed in float32 is not
        ({name: count * 1.0001 + 0.5}, DIFFERS),
        ({"lost": 1.0}, DIFFERS),
    ):
        other = replace(record, metrics={**record.metrics, **changed})
        monkeypatch.setattr(records, "find", lambda *_, other=other: other)
        assert verify.verify(one, RESULTS).verdict == verdict


@pytest.mark.slow
def test_absent_and_other_data_are_reported_and_are_no_failure(call, monkeypatch, tmp_path):
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    monkeypatch.setattr(files, "DATA", tmp_path)
    code, found, _ = call("reproduce.py", "nrgpt/table4", "--verify")
    assert code == 0 and found.count("not verified [1]") == 5, "one cell of each model"
    assert "[1] needs tinyshakespeare/input.txt" in found
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be\n" * 100)
    code, found, _ = call("reproduce.py", "nrgpt/table4", "--verify")
    assert code == 0 and "other data: the published cell has read another tinyshakespeare/input.txt" in found


def test_a_changed_config_differs_and_measured_times_are_left_out() -> None:
    altered = plan.make(spec.load("cem/table3"), "cpu", [0], ["optimizer.lr=0.5"]).cells[0]
    found = verify.verify(altered, RESULTS)
    assert found.verdict == DIFFERS
    assert found.why.startswith("its config has changed")
    _, timed = planned_cells.choose(["ngpt/steptime"], "cpu", RESULTS)[0]
    assert verify.verify(timed, RESULTS) == verify.Verification(NOT_VERIFIED, why="it measures time")


def test_a_training_that_fails_differs(cell: PlannedCell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[float]:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(verify, "_run", broken)
    found = verify.verify(cell, RESULTS)
    assert (found.verdict, found.why) == (DIFFERS, "it fails: RuntimeError: shapes do not fit")
