"""What a user may get wrong, or lack, is said at once, with what to do: before anything is trained or written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paper_repro.cells.records import record_path
from paper_repro.tests.support import synthetic

Command = Callable[..., tuple[int, str, str]]


def test_a_run_without_any_data_says_so_and_writes_no_table(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path / "data")
    monkeypatch.delenv("PAPER_REPRO_DATA", raising=False)
    code, said, errors = call("reproduce.py", "cem/fig2c", f"runs={tmp_path / 'runs'}")
    assert code == 1 and not said
    assert "run: python scripts/prepare_data.py" in errors and "no table is written" in errors
    assert not (tmp_path / "runs" / "cem").exists()


def test_a_metric_that_no_cell_has_is_named_in_the_table_and_ends_the_command(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "no metric of that name (did you mean 'score'?)"
    text = synthetic.ARTIFACT.replace("  score:", "  scoer:").replace("metric: score", "metric: scoer")
    plan, runs = synthetic.plan(tmp_path / "papers", text, "smoke"), tmp_path / "runs"
    outcome = synthetic.finished(error=0.5, score=1.0)
    synthetic.fill(runs, plan, lambda cell: outcome if cell.seed else None)
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(tmp_path / "papers"))
    words = ("reproduce.py", "made/up", "scale=smoke", "--render", f"runs={runs}")
    line = text.partition("  scoer:")[0].count("\n") + 1
    code, table, errors = call(*words)
    place = f"{tmp_path / 'papers/made/up.yaml'}:{line}"
    assert code == 2 and errors.splitlines()[-1].startswith(f"error: {place}: 'scoer': the finished cells have {said}")
    assert table.count(f"| {said} ") == 5, "four places and a claim"
    for cell in plan.cells:
        if dict(cell.key)["task"] == "hard":
            record_path(runs, cell.id).unlink(missing_ok=True)
    assert call(*words)[0] == 0, "what is not run yet may have the metric"


def test_faulty_python_beside_a_yaml_stops_the_run_before_the_first_cell(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = synthetic.write_artifact(tmp_path / "papers").with_suffix(".py")
    path.write_text("import os\nraise ValueError('no such rate')\n")
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(tmp_path / "papers"))
    with pytest.raises(ValueError, match="no such rate"):
        call("reproduce.py", "made/up", "scale=smoke", f"runs={tmp_path / 'runs'}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("training.precision=foo", "training.precision='foo': expected 32-true or 64-true or "),
        ("data.batch_size=0", "data.batch_size=0: expected a whole number of 1 or more"),
        ("optimizer.lr=-1", "optimizer.lr=-1: expected a learning rate of 0 or more"),
        ("machine.workers=0", "machine.workers=0: expected a whole number of 1 or more"),
        ("machine.nodes=2", "machine.nodes=2: the same command has to be started on every node"),
    ],
)
@pytest.mark.parametrize("start", [("train.py", "cem/gaussian_process"), ("reproduce.py", "cem/table3")], ids=str)
def test_a_value_that_the_words_tell_is_refused_before_torch_is_asked(
    start: tuple[str, ...], word: str, said: str, call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paper_repro.cells.runner.estimate", None)  # would count with torch
    code, _, errors = call(*start, word, f"runs={tmp_path / 'runs'}")
    assert code == 2 and said in errors and len(errors.splitlines()) == 1, errors


def test_of_several_artifacts_none_is_published_where_one_lacks_results(
    call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers, runs, results = (tmp_path / name for name in ("papers", "runs", "results"))
    plan = synthetic.plan(papers, scale="smoke")
    synthetic.write_artifact(papers, synthetic.ARTIFACT.replace("trunk.width: 16", "trunk.width: 24"), "open")
    synthetic.fill(runs, plan, lambda cell: synthetic.finished(error=0.5, score=1.0))
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(papers))
    monkeypatch.setattr("paper_repro.base.errors.RESULTS", results)
    words = ("scale=smoke", "--publish", f"runs={runs}")
    code, said, errors = call("reproduce.py", "made/up", "made/open", *words)
    assert code == 2 and not said and "6 of 12 cells have no result" in errors and not results.exists()
    assert call("reproduce.py", "made/up", *words)[0] == 0 and (results / "made/up/smoke/table.md").is_file()


@pytest.mark.parametrize("words", [("cem/table3", "--plan"), ("--list",), ("cem/table3",)])
def test_runs_that_are_a_file_are_refused(words: tuple[str, ...], call: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, said, errors = call("reproduce.py", *words, f"runs={tmp_path / 'file'}")
    assert code == 2 and not said and errors == f"error: runs={tmp_path / 'file'}: this is no folder; give runs=DIR\n"


def test_a_name_of_another_command_leads_there(call: Command, tmp_path: Path) -> None:
    code, _, errors = call("train.py", "cem/table3", f"runs={tmp_path}")
    assert code == 2 and "cem/table3 is an artifact, not an experiment: run scripts/reproduce.py cem/table3" in errors
