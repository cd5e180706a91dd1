"""What one of many runners asks for: listings instead of looks at each cell."""

import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from paper_repro.cells import leases, records, runner
from paper_repro.cells.records import record_path
from paper_repro.cells.tasks import FINISHED
from paper_repro.launchers import slurm
from paper_repro.tests.support import sweeps


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the record of each cell is asked for."""
    found = Counter[str]()
    real = records.find

    def find(root: Path, cell: str) -> records.Record | None:
        found[cell] += 1
        return real(root, cell)

    monkeypatch.setattr(records, "find", find)
    return found


def test_cells_that_never_began_are_not_asked_for_and_each_record_is_read_once_before_the_end(
    tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = sweeps.cells(6, steps=1)
    assert runner.run_cells(cells[:2], tmp_path, []).exit_code == 0
    reads.clear()
    monkeypatch.setattr(runner.Dispatcher, "run", lambda self, todo: (False, ""))
    monkeypatch.setattr(runner, "count_by_status", lambda cells, runs: {})
    runner.run_cells(cells, tmp_path, [tmp_path])
    assert reads == {cell.id: 1 for cell in cells[:2]}


def test_of_several_runners_each_counts_its_share(tmp_path: Path) -> None:
    cells = sweeps.cells(5, steps=1)
    assert runner.run(cells, tmp_path, io.StringIO()).by_status == {FINISHED: 5}
    shares = [runner.run(cells, tmp_path, io.StringIO(), share=runner.Share(index, 2)).by_status for index in range(2)]
    assert shares == [{FINISHED: 3}, {FINISHED: 2}]
    record_path(tmp_path, cells[1].id).write_text("{")
    monkeyed = runner.Share(1, 2, patience=0.1)
    assert runner.run(cells, tmp_path, io.StringIO(), share=monkeyed).exit_code == 0, "a damaged record is run again"


def test_the_watch_of_a_sweep_asks_for_cells_that_began_alone(tmp_path: Path, reads: Counter[str]) -> None:
    cells = sweeps.cells(8, steps=1)
    runner.run(cells[:1], tmp_path, io.StringIO())
    reads.clear()
    own = slurm.Sweep(cells, SimpleNamespace(runs=str(tmp_path), fill=False))  # type: ignore[arg-type]
    with leases.hold(tmp_path, [cells[1].id]):
        left = own.left()
        assert [cell.id for cell in left] == [cell.id for cell in cells[1:]]
        assert reads.keys() == {cells[0].id, cells[1].id}
        assert "1/8 cells done, 1 running on" in slurm._line(own, left, Counter(running=1))


def test_a_fork_server_reads_git_s_state_and_hashes_before_it_imports(tmp_path: Path) -> None:
    program = (
        "import sys, paper_repro.base.files as files\n"
        "read = files.read_code_state\n"
        "def first():\n"
        "    print(sorted(name for name in sys.modules if name.startswith('paper_repro.')))\n"
        "    return read()\n"
        "files.read_code_state = first\n"
        "import paper_repro.cells.preload\n"
        "from paper_repro.base import identity\n"
        "from paper_repro.cells import records\n"
        "assert 'hydra.utils' in sys.modules and records.versions.cache_info().currsize == 1\n"
        "assert identity._module.cache_info().currsize > 1\n"
    )
    names = json.dumps([str(tmp_path / "log"), ["hydra.utils", "no.such.module", "paper_repro.training.fit"]])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PAPER_REPRO_PRELOAD": names},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stdout
        == "['paper_repro.base', 'paper_repro.base.files', 'paper_repro.cells', 'paper_repro.cells.preload']\n"
    )
    assert "ModuleNotFoundError: No module named 'no'" in (tmp_path / "log").read_text()
