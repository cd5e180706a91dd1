"""What one of many runners asks for: listings instead of looks, few looks at what others hold, marks of what ended."""

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    monkeypatch.setattr(runner.Pool, "drain", lambda self: (False, ""))
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


def waiting(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str], SimpleNamespace]:
    """A pool that waits for ``count`` cells that others hold, the cells it looks at, and its clock."""
    clock, looked = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0), list[str]()
    monkeypatch.setattr(runner, "time", clock)

    def freed(path: Path) -> bool:
        looked.append(path.parent.name)
        return False

    monkeypatch.setattr(runner, "freed", freed)
    todo = runner.jobs(sweeps.cells(count))
    display: Any = SimpleNamespace(say=lambda text: None, update=lambda: None)
    servers: Any = SimpleNamespace()
    own = runner.Pool(folder, servers, todo, {}, runner.Sweep(count, 0), display, 1, False, runner.WHOLE)
    own._elsewhere, own._todo = list(todo), []
    return own, looked, clock


@pytest.mark.parametrize("count", [3, 40, 400])
def test_a_runner_looks_at_a_few_of_what_others_hold_and_at_all_within_a_round(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, looked, clock = waiting(tmp_path, count, monkeypatch)
    most = max(runner.ELSEWHERE_JOBS, -(-count // 30))
    for _ in range(int(runner.ROUND_SECONDS)):
        before = len(looked)
        clock.now += runner.ELSEWHERE_POLL_SECONDS
        own._look_elsewhere()
        assert len(looked) - before <= min(most, count)
        own._look_elsewhere()  # too soon
        assert len(looked) - before <= min(most, count)
    assert len(set(looked)) == count and len(own._elsewhere) == count


def test_what_others_hold_is_given_out_once_it_is_free_and_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _, clock = waiting(tmp_path, 5, monkeypatch)
    monkeypatch.setattr(runner, "freed", lambda path: True)
    own._look_elsewhere()
    assert len(own._todo) == 4 and len(own._elsewhere) == 1
    monkeypatch.setattr(runner, "is_done", lambda runs, cell: True)
    clock.now += 1
    own._look_elsewhere()
    assert len(own._todo) == 4 and not own._elsewhere, "what others have done is not given out"


def test_the_watch_of_a_sweep_asks_for_cells_that_began_alone(tmp_path: Path, reads: Counter[str]) -> None:
    cells = sweeps.cells(8, steps=1)
    runner.run(cells[:1], tmp_path, io.StringIO())
    reads.clear()
    own = slurm.Sweep(cells, SimpleNamespace(runs=str(tmp_path), fill=False))  # type: ignore[arg-type]
    holder = leases.Leases(tmp_path)
    with holder.hold([cells[1].id]):
        left = own.left()
        assert [cell.id for cell in left] == [cell.id for cell in cells[1:]]
        assert reads.keys() == {cells[0].id, cells[1].id}
        assert "1/8 cells done, 1 running on" in slurm._line(own, left, Counter(running=1))


def test_a_fork_server_imports_what_builds_configs() -> None:
    program = (
        "import sys\n"
        "from paper_repro.cells import fork_server, records\n"
        "assert fork_server.BUILDER not in sys.modules\n"
        "fork_server._import({'cells': []})\n"
        "assert fork_server.BUILDER in sys.modules and records.versions.cache_info().currsize == 1\n"
        "found = records.provenance('cpu', records.CodeState(None, None))\n"
        "found['versions'].clear()\n"
        "assert records.versions()['python']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
