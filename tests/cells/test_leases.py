import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells.leases import LeasedError, hold, holder, lease_path

GRAB = """
import sys, time
from pathlib import Path
from paper_repro.cells.leases import LeasedError, hold
root, gun, cells = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
print("ready", flush=True)
while not gun.exists():
    time.sleep(0.001)
try:
    with hold(root, cells):
        print("won", flush=True)
        sys.stdin.readline()
except LeasedError:
    print("lost", flush=True)
"""


def start(root: Path, *cells: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", GRAB, str(root), str(root / "gun"), *cells]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def verdict(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_lease_is_there_while_it_is_held_and_gone_after(tmp_path: Path) -> None:
    path = lease_path(tmp_path, "cell")
    with hold(tmp_path, ["cell"]):
        assert holder(path) == f"pid {os.getpid()} on {socket.gethostname()}"
        with (
            pytest.raises(LeasedError, match=f"cell cell is being run by pid {os.getpid()}"),
            hold(tmp_path, ["cell"]),
        ):
            pass
        assert holder(path) is not None, "a refused attempt must not free the lease"
    assert holder(path) is None and not path.exists()
    with pytest.raises(KeyboardInterrupt), hold(tmp_path, ["cell", "other"]):
        raise KeyboardInterrupt
    assert not list(tmp_path.glob("cells/*/lease"))


def test_of_several_processes_exactly_one_wins(tmp_path: Path) -> None:
    started = [start(tmp_path, "cell") for _ in range(3)]
    (tmp_path / "gun").touch()
    found = [verdict(process) for process in started]
    for process in started:
        process.communicate("\n", timeout=30)
    assert sorted(found) == ["lost", "lost", "won"]
    assert not lease_path(tmp_path, "cell").exists()


def test_several_cells_are_taken_together_or_not_at_all(tmp_path: Path) -> None:
    with hold(tmp_path, ["c"]):
        with pytest.raises(LeasedError, match="cell c "), hold(tmp_path, ["a", "b", "c", "d"]):
            pass
        assert [cell for cell in "abcd" if lease_path(tmp_path, cell).exists()] == ["c"]
    with hold(tmp_path, ["a", "b", "c", "d", "a"]):
        assert all(holder(lease_path(tmp_path, cell)) for cell in "abcd")


def test_the_lease_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    process = start(tmp_path, "cell")
    (tmp_path / "gun").touch()
    assert verdict(process) == "won"
    with pytest.raises(LeasedError, match=f"pid {process.pid} "), hold(tmp_path, ["cell"]):
        pass
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie: nobody has asked for its end yet
    assert lease_path(tmp_path, "cell").exists()
    with hold(tmp_path, ["cell"]):
        pass
    process.communicate(timeout=30)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    with pytest.raises(UsageError, match=r"no locks.*runs=DIR"), hold(tmp_path, ["cell"]):
        pass
