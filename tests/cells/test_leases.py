import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells.leases import LeasedError, LeaseLostError, Leases, freed, holder, lease_path

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


def left(root: Path, cell: str, content: str = "") -> Path:
    """The file of a lease as a dead process has left it."""
    path = lease_path(root, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


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
        own.check()
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
    with own.hold(["a", "b", "c", "d", "a"]):
        assert all(holder(lease_path(tmp_path, cell)) for cell in "abcd")


def test_processes_that_want_overlapping_cells_do_not_block_each_other_for_good(tmp_path: Path) -> None:
    first, second = start(tmp_path, "a", "b", "c"), start(tmp_path, "c", "b", "d")
    (tmp_path / "gun").touch()
    assert sorted([verdict(first), verdict(second)]) == ["lost", "won"]
    for process in (first, second):
        process.communicate("\n", timeout=30)
    assert not list(tmp_path.glob("cells/*/lease"))


@pytest.mark.parametrize("content", ["", "{", "null", '{"host": "another", "pid": 1}', "\x00"])
def test_the_file_that_a_dead_process_left_is_nobodys(tmp_path: Path, own: Leases, content: str) -> None:
    path = left(tmp_path, "cell", content)
    assert holder(path) is None
    with own.hold(["cell"]):
        own.check()
    left(tmp_path, "cell", content)
    assert freed(path) and not path.exists()


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


def test_a_process_that_is_stopped_keeps_its_lease(tmp_path: Path, own: Leases) -> None:
    process = start(tmp_path, "cell")
    (tmp_path / "gun").touch()
    assert verdict(process) == "won"
    process.send_signal(signal.SIGSTOP)
    try:
        assert not freed(lease_path(tmp_path, "cell"))
        with pytest.raises(LeasedError, match=f"pid {process.pid} "), own.hold(["cell"]):
            pass
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate("\n", timeout=30)
    assert not lease_path(tmp_path, "cell").exists()


def test_who_lost_a_lease_does_not_free_the_one_of_its_successor(tmp_path: Path, own: Leases) -> None:
    path, successor = lease_path(tmp_path, "cell"), Leases(tmp_path)
    with own.hold(["cell", "other"]):
        path.unlink()  # somebody has removed the cell's folder
        with pytest.raises(LeaseLostError, match=r"cell cell: .*lost"):
            own.check()
        holding = successor.hold(["cell"])
        holding.__enter__()
    assert holder(path) is not None and not lease_path(tmp_path, "other").exists()
    successor.check()
    holding.__exit__(None, None, None)
    assert not path.exists()


def test_many_threads_never_hold_a_lease_together(tmp_path: Path) -> None:
    inside, most, held = [0], [0], [0]
    deadline = time.monotonic() + 60  # how often each is held depends on who else computes, so no number of tries

    def worker() -> None:
        own = Leases(tmp_path)
        while held[0] < 60 and time.monotonic() < deadline:
            try:
                with own.hold(["cell"]):
                    inside[0] += 1
                    most[0], held[0] = max(most[0], inside[0]), held[0] + 1
                    time.sleep(0.0005)
                    inside[0] -= 1
            except LeasedError:
                freed(lease_path(tmp_path, "cell"))

    threads = [threading.Thread(target=worker) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held[0] >= 60 and most[0] == 1


def test_a_file_system_without_locks_is_refused(tmp_path: Path, own: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    with pytest.raises(UsageError, match=r"no locks.*runs=DIR"), own.hold(["cell"]):
        pass
