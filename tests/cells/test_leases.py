import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paper_repro.cells import leases
from paper_repro.cells.leases import STALE_SECONDS, LeasedError, Leases, clear, holder, lease_path

GRAB = """
import sys, time
from pathlib import Path
from paper_repro.cells.leases import LeasedError, Leases
root, gun, cells = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
own = Leases(root)
print("ready", flush=True)
while not gun.exists():
    time.sleep(0.001)
try:
    with own.hold(cells):
        print("won", flush=True)
        sys.stdin.readline()
except LeasedError:
    print("lost", flush=True)
"""


@pytest.fixture
def own(tmp_path: Path) -> Leases:
    return Leases(tmp_path)


def start(root: Path, *cells: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", GRAB, str(root), str(root / "gun"), *cells]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def verdict(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def sign(root: Path, cell: str, host: str, pid: int, age: float = 0.0) -> Path:
    path = lease_path(root, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": host, "pid": pid}))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lease_is_there_while_it_is_held_and_gone_after(tmp_path: Path, own: Leases) -> None:
    path = lease_path(tmp_path, "cell")
    with own.hold(["cell"]):
        assert holder(path) == f"pid {os.getpid()} on {socket.gethostname()}"
        with (
            pytest.raises(LeasedError, match=f"cell cell is being run by pid {os.getpid()}"),
            Leases(tmp_path).hold(["cell"]),
        ):
            pass
        assert holder(path) is not None, "a refused attempt must not free the lease"
    assert holder(path) is None and not path.exists()


def test_a_lease_is_freed_after_an_exception(tmp_path: Path, own: Leases) -> None:
    for error in (RuntimeError, KeyboardInterrupt, MemoryError):
        with pytest.raises(error), own.hold(["a", "b"]):
            raise error
        assert not lease_path(tmp_path, "a").exists() and not lease_path(tmp_path, "b").exists()
    with own.hold(["a", "b"]):
        pass


def test_of_several_processes_exactly_one_wins(tmp_path: Path) -> None:
    started = [start(tmp_path, "cell") for _ in range(3)]
    (tmp_path / "gun").touch()
    found = [verdict(process) for process in started]
    for process in started:
        process.communicate("\n", timeout=30)
    assert sorted(found) == ["lost", "lost", "won"]
    assert not lease_path(tmp_path, "cell").exists()


def test_several_cells_are_taken_together_or_not_at_all(tmp_path: Path, own: Leases) -> None:
    with own.hold(["c"]):
        with pytest.raises(LeasedError, match="cell c "), Leases(tmp_path).hold(["a", "b", "c", "d"]):
            pass
        assert [cell for cell in "abcd" if lease_path(tmp_path, cell).exists()] == ["c"]
    with own.hold(["a", "b", "c", "d"]):
        assert all(holder(lease_path(tmp_path, cell)) for cell in "abcd")


def test_processes_that_want_overlapping_cells_do_not_block_each_other_for_good(tmp_path: Path) -> None:
    first, second = start(tmp_path, "a", "b", "c"), start(tmp_path, "c", "b", "d")
    (tmp_path / "gun").touch()
    assert sorted([verdict(first), verdict(second)]) == ["lost", "won"]
    for process in (first, second):
        process.communicate("\n", timeout=30)
    assert not list(tmp_path.glob("cells/*/lease"))


def test_a_disk_that_fills_up_in_the_middle_frees_what_was_taken(
    tmp_path: Path, own: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = leases._create

    def create(path: Path) -> None:
        if "b" in path.parts:
            raise OSError(28, "No space left on device")
        real(path)

    monkeypatch.setattr(leases, "_create", create)
    with pytest.raises(OSError, match="No space left"), own.hold(["a", "b"]):
        pass
    assert not list(tmp_path.glob("cells/*/lease"))


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path, own: Leases) -> None:
    path = sign(tmp_path, "cell", socket.gethostname(), dead_pid())
    assert holder(path) is None
    with own.hold(["cell"]):
        assert holder(path) == f"pid {os.getpid()} on {socket.gethostname()}"


def test_the_lease_of_a_killed_process_is_taken_over(tmp_path: Path, own: Leases) -> None:
    process = start(tmp_path, "cell")
    (tmp_path / "gun").touch()
    assert verdict(process) == "won"
    with pytest.raises(LeasedError, match=f"pid {process.pid} "), own.hold(["cell"]):
        pass
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie: nobody has asked for its end yet
    assert lease_path(tmp_path, "cell").exists()
    with own.hold(["cell"]):
        pass
    process.communicate(timeout=30)


def test_a_lease_of_another_host_lives_as_long_as_its_heartbeat(tmp_path: Path, own: Leases) -> None:
    path = sign(tmp_path, "cell", "another-host", 1, age=STALE_SECONDS - 5)
    assert holder(path) == "pid 1 on another-host"
    with pytest.raises(LeasedError, match="pid 1 on another-host"), own.hold(["cell"]):
        pass
    sign(tmp_path, "cell", "another-host", 1, age=STALE_SECONDS + 5)
    assert holder(path) is None
    with own.hold(["cell"]):
        assert holder(path) is not None


def test_a_live_process_whose_heartbeat_stopped_has_lost_its_lease(tmp_path: Path) -> None:
    assert holder(sign(tmp_path, "cell", socket.gethostname(), os.getpid(), age=STALE_SECONDS + 5)) is None


def test_who_lost_a_lease_does_not_free_the_one_of_its_successor(tmp_path: Path, own: Leases) -> None:
    with own.hold(["cell"]):
        sign(tmp_path, "cell", "another-host", 7)  # taken over while this process slept
    assert holder(lease_path(tmp_path, "cell")) == "pid 7 on another-host"


@pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", '{"host": "h"}', '{"host": "h", "pid": "x"}', "\x00"])
def test_an_unsigned_lease_is_nobodys(tmp_path: Path, own: Leases, content: str) -> None:
    path = sign(tmp_path, "cell", "h", 1)
    path.write_text(content)
    assert holder(path) is None
    with own.hold(["cell"]):
        pass


def test_the_heartbeat_keeps_held_leases_young_and_stops_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)
    own = Leases(tmp_path)
    path = lease_path(tmp_path, "cell")
    with own.hold(["cell"]):
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert holder(path) is not None
        own.close()
        time.sleep(0.1)
        os.utime(path, (1, 1))
        time.sleep(0.1)
        assert holder(path) is None


def test_other_cells_are_free(tmp_path: Path, own: Leases) -> None:
    with own.hold(["a"]), Leases(tmp_path).hold(["b"]):
        assert holder(lease_path(tmp_path, "a")) and holder(lease_path(tmp_path, "b"))


def test_the_same_cell_named_twice_is_one_lease(tmp_path: Path, own: Leases) -> None:
    with own.hold(["a", "a"]):
        assert holder(lease_path(tmp_path, "a"))
    assert not lease_path(tmp_path, "a").exists()


def test_leases_of_the_dead_are_cleared_and_those_of_the_living_are_not(tmp_path: Path, own: Leases) -> None:
    with own.hold(["a"]):
        dead = lease_path(tmp_path, "b")
        dead.parent.mkdir(parents=True)
        dead.write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}))
        clear(tmp_path, ["a", "b", "c"])
        assert lease_path(tmp_path, "a").exists() and not dead.exists()
