"""Records as a table, and a record by its id."""

from pathlib import Path
from typing import Any

import pandas
import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import DIVERGED, FINISHED, Outcome
from paper_repro.exports.frame import frame
from paper_repro.exports.weights import find_record
from paper_repro.tables.spec import EXTRA_PAPERS
from paper_repro.tests.support import synthetic


def test_the_committed_table_3_is_a_tidy_table() -> None:
    found = frame("cem/table3", scale="cpu")
    head = ["artifact", "scale", "kernel", "model", "seed", "metric", "value", "unit", "status", "cell"]
    assert [*found.columns] == [*head, "num_parameters", "seconds", "device", "commit"]
    own = found[(found.kernel == "rbf") & (found.model == "t2") & (found.metric == "test_rmse")]
    assert [*own.seed] == [*range(10)] and own.cell.iloc[0] == "95071d22e59ea75a"
    assert own.value.iloc[0] == 0.01137847846283044 and own.num_parameters.iloc[0] == 22657
    assert {*own.unit} == {"standard deviations of the training targets"} and {*own.status} == {FINISHED}
    means = found[found.metric == "test_rmse"].groupby(["kernel", "model"]).value.mean()
    assert f"{means['rbf', 't2']:.4f}" == "0.0105" and len(means) == 5 * 6
    assert found.duplicated(["kernel", "model", "seed", "metric"]).sum() == 0


def test_what_a_cell_lacks_is_nan_and_what_was_not_run_has_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = synthetic.plan(tmp_path)
    monkeypatch.setenv(EXTRA_PAPERS, str(tmp_path))
    lost, absent = made.cells[0], made.cells[1]

    def outcome(cell: Any) -> Outcome:
        if cell is lost:
            return Outcome(DIVERGED)
        return Outcome(FINISHED, {"error": 0.5}, unavailable={"similarity": "needs gpt2"})

    synthetic.fill(tmp_path / "runs", made, outcome)
    record_path(tmp_path / "runs", absent.id).unlink()
    found = frame(made.artifact.id, scale=made.scale_name, runs=tmp_path / "runs")
    assert absent.id not in {*found.cell} and {*found.cell} == {cell.id for cell in made.cells} - {absent.id}
    own = found[found.cell == lost.id]
    assert {*own.status} == {DIVERGED} and own.value.isna().all()
    assert {*own.metric} == {name for name, metric in made.artifact.metrics.items() if metric.measured}
    other = found[found.cell == made.cells[2].id].set_index("metric").value
    assert other["error"] == 0.5 and pandas.isna(other["similarity"])


def test_a_record_is_found_by_its_folder_its_id_or_the_beginning_of_it(tmp_path: Path) -> None:
    made = synthetic.plan(tmp_path)
    synthetic.fill(tmp_path, made, lambda cell: Outcome(FINISHED, {"error": 0.5}))
    home = record_path(tmp_path, made.cells[0].id).parent
    for word in (home, home / "record.json", made.cells[0].id, made.cells[0].id[:6]):
        folder, record = find_record(word, tmp_path)
        assert folder == home and record.cell == made.cells[0].id
    home.rename(home.with_name("abcd000000000001"))
    record_path(tmp_path, made.cells[1].id).parent.rename(home.with_name("abcd000000000002"))
    with pytest.raises(UsageError, match="no folder cells/ in it, expected a runs folder"):
        frame("cem/table3", runs=home / "nowhere")
    for word, said in (("abcd", "abcd: 2 cells begin so"), ("abc", "abc: no record.json in it")):
        with pytest.raises(UsageError, match=said):
            find_record(word, tmp_path)
