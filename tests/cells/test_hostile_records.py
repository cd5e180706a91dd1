"""Records, and what lies beside them, as somebody else may have made them: input, not truth."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.errors import ROOT, UsageError
from paper_repro.base.files import CodeState, CorruptFileError, sha256_of_bytes
from paper_repro.cells import records, runner
from paper_repro.cells.records import Record, find, record_path
from paper_repro.cells.tasks import FAILED, FINISHED, Outcome
from paper_repro.tables.plan import Plan
from paper_repro.tables.publish import publish
from paper_repro.tests.cells.test_records import small
from paper_repro.tests.support import sweeps, synthetic

COMMIT = "a" * 40


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return synthetic.plan(tmp_path)


@pytest.fixture
def content() -> dict[str, Any]:
    record = small(attachments={"trace.csv": "0" * 64}, unavailable={"score": "needs gpt2"})
    return dataclasses.asdict(record)


def seal(path: Path, content: Any) -> Path:
    """Write a record as an attacker does: with a hash that fits."""
    path.write_bytes(records.sealed(content))
    return path


def refused(path: Path) -> str:
    with pytest.raises(CorruptFileError) as caught:
        records.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < 700
    assert "to run the cell again" in message
    return message


NESTED: Any = 1
for _ in range(40):
    NESTED = [NESTED]

WRONG: list[tuple[str, Any]] = [
    *((field, value) for field in ("cell", "status", "note") for value in (3, "x" * 2_000)),
    *(("cell", name) for name in ("../up", ".hidden", "", "nul\0", "/etc")),
    *(("seed", value) for value in (-1, "0", None, True, 10**30)),
    *(("config", value) for value in (None, {"a": NESTED}, {str(key): 0 for key in range(2_000)})),
    *(("metrics", value) for value in ([], {"rmse": "0.2"}, {"rmse": 10**400})),
    *(("curves", {"loss": value}) for value in (None, {}, {"step": [1], "value": []}, {"step": ["a"], "value": [1.0]})),
    *((field, value) for field in ("parameters", "multiply_adds") for value in (-1, 1.5, "7", True, 10**30)),
    *((field, value) for field in ("seconds", "peak_memory_mib") for value in (-1, "1", True)),
    *(
        ("provenance", value)
        for value in (None, {"commit": "HEAD"}, {"dirty": "no"}, {"host": "h"}, {"compiled": True})
    ),
    *(("attachments", value) for value in (None, [], {"a.txt": None}, {"a.txt": "g" * 64})),
    ("attachments", {f"{number}.txt": "0" * 64 for number in range(60)}),
    *(("unavailable", value) for value in (None, {"score": 3}, {"score": "x" * 2_000})),
    ("surprise", 1),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_sealed_record_of_other_kinds_or_sizes_is_no_record(tmp_path, content, field, value):
    assert "not a run record" in refused(seal(tmp_path / "record.json", {**content, field: value}))


PATHS = [
    *("../../../planted.py", "..", "", "/etc/planted", "a/b", "a\\b", ".bashrc", "nul\0byte", "new\nline", "x" * 300),
    *("RECORD.json", "lease", "logs", "weights.safetensors", "step-000000001.ckpt"),
]


@pytest.mark.parametrize("name", PATHS)
def test_an_attachment_lies_in_the_cells_folder_and_nowhere_else(tmp_path, content, name):
    hostile = {**content, "attachments": {name: sha256_of_bytes(b"planted")}}
    assert "attachment" in refused(seal(tmp_path / "record.json", hostile))
    with pytest.raises(ValueError, match="attachment"):
        records.write(tmp_path / "written.json", Record(**hostile))
    with pytest.raises(ValueError, match="attachment"):
        records.attachment(tmp_path, Record(**hostile), name)
    assert not (tmp_path / "written.json").exists()


def _circle(path: Path) -> None:
    path.with_name("other").symlink_to(path)
    path.symlink_to("other")


def _huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b"[" * 19_000), _circle, os.mkfifo, _huge, Path.mkdir])
def test_what_is_no_file_or_no_record_counts_as_not_run_in_one_line(make, tmp_path, caplog):
    path = record_path(tmp_path, "c" * 16)
    path.parent.mkdir(parents=True)
    make(path)
    refused(path)
    assert find(tmp_path, "c" * 16) is None
    assert len(caplog.records) == 1 and "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize(("commit", "dirty"), [(None, None), (COMMIT, None), (COMMIT, True)])
def test_a_record_of_unknown_code_is_not_published(commit: Any, dirty: Any, plan: Plan, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    synthetic.fill(runs, plan, lambda _: synthetic.finished(error=0.5, score=1.0))
    path = record_path(runs, plan.cells[-1].id)
    found = records.read(path)
    records.write(path, dataclasses.replace(found, provenance={**found.provenance, "commit": commit, "dirty": dirty}))
    with pytest.raises(UsageError, match=f"1 records.*uncommitted code.*{plan.cells[-1].id}"):
        publish(plan, runs, results)
    assert not results.exists()


COMMITTED = """case "$*" in *rev-parse*) echo >> {asked}
if [ $(wc -l < {asked}) -le 2 ]; then echo {commit}; else echo {other}; fi;; esac
"""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout has a git state")
def test_a_job_that_begins_after_the_code_has_changed_is_called_uncommitted(tmp_path, monkeypatch, capsys):
    path = tmp_path / "bin" / "git"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n" + COMMITTED.format(commit=COMMIT, other="b" * 40, asked=tmp_path / "asked"))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    cells = sweeps.cells(2, workers=1, steps=2)
    assert runner.run(cells, tmp_path / "runs").by_status == {FINISHED: 2}
    origins = [records.read(record_path(tmp_path / "runs", cell.id)).provenance for cell in cells]
    assert sorted((found["commit"], found["dirty"]) for found in origins) == [(COMMIT, False), (COMMIT, True)]
    assert capsys.readouterr().err.count("the code has changed since this run began") == 1


def test_an_outcome_that_no_record_can_hold_fails_its_cell_alone(tmp_path: Path) -> None:
    from paper_repro.cells.tasks import Cell
    from paper_repro.cells.worker import Worker

    worker = Worker(tmp_path, None, CodeState(COMMIT, False))  # type: ignore[arg-type]
    outcome = Outcome(FINISHED, attachments={"../up": "0" * 64})
    kept = worker._record(Cell("c", {"seed": 0}), outcome, {"commit": COMMIT, "dirty": False})
    assert kept.status == FAILED and "attachment '../up'" in kept.note
    assert records.read(record_path(tmp_path, "c")).note == kept.note
