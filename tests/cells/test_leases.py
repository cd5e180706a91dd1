import contextlib
import errno
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from paper_repro.base.errors import UsageError
from paper_repro.cells import leases
from paper_repro.cells.leases import LeasedError, LeaseLostError, Leases, clear, freed, holder, lease_path

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


def sign(root: Path, cell: str, age: float = 0.0, **changes: object) -> Path:
    """A lease as another process has left it, by default one of this boot; ``age`` is what its mtime says, s."""
    path = lease_path(root, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(leases._own_signature()) | changes))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


ELSEWHERE = {"host": "another-host", "boot": "another boot", "pid": 1}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Leases from elsewhere are watched for this many seconds."""
    monkeypatch.setattr(leases, "STALE_SECONDS", 0.3)
    return 0.3


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

    def create(path: Path) -> leases.Signature | None:
        if "b" in path.parts:
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(leases, "_create", create)
    with pytest.raises(OSError, match="No space left"), own.hold(["a", "b"]):
        pass
    assert not list(tmp_path.glob("cells/*/lease"))


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path, own: Leases) -> None:
    path = sign(tmp_path, "cell", pid=dead_pid())
    assert holder(path) is None
    with own.hold(["cell"]):
        assert holder(path) == f"pid {os.getpid()} on {socket.gethostname()}"


def test_a_pid_that_was_given_to_another_process_since_is_nobodys(tmp_path: Path, own: Leases) -> None:
    path = sign(tmp_path, "cell", start=1)
    assert holder(path) is None
    with own.hold(["cell"]):
        pass


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


@pytest.mark.parametrize("age", [0.0, 60.0, -60.0, 86_400.0, -86_400.0])
@pytest.mark.parametrize("other", [{"boot": "another boot"}, {"pids": "pid:[1]"}])
def test_a_lease_from_elsewhere_lives_as_long_as_it_is_touched_whatever_its_clock_says(
    tmp_path: Path, own: Leases, impatient: float, age: float, other: dict[str, str]
) -> None:
    """Another boot, or another container of this host, whose clock is off by ``-age`` seconds."""
    path = sign(tmp_path, "cell", age, **ELSEWHERE | other)
    until, ticks = time.monotonic() + 2 * impatient, 0
    while time.monotonic() < until:
        ticks += 1
        os.utime(path, (time.time() - age + ticks, time.time() - age + ticks))
        assert not freed(path)
        with pytest.raises(LeasedError, match="pid 1 on another-host"), own.hold(["cell"]):
            pass
        time.sleep(impatient / 10)
    until = time.monotonic() + 20 * impatient
    while not freed(path) and time.monotonic() < until:
        time.sleep(impatient / 10)
    with own.hold(["cell"]):
        own.check()


def test_a_process_that_is_stopped_keeps_its_lease(tmp_path: Path, own: Leases, impatient: float) -> None:
    process = start(tmp_path, "cell")
    (tmp_path / "gun").touch()
    assert verdict(process) == "won"
    process.send_signal(signal.SIGSTOP)
    try:
        path = lease_path(tmp_path, "cell")
        os.utime(path, (1, 1))
        until = time.monotonic() + 3 * impatient
        while time.monotonic() < until:
            assert not freed(path)
            with pytest.raises(LeasedError, match=f"pid {process.pid} "), own.hold(["cell"]):
                pass
            time.sleep(impatient / 10)
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate("\n", timeout=30)
    assert not lease_path(tmp_path, "cell").exists()


def test_who_lost_a_lease_does_not_free_the_one_of_its_successor(tmp_path: Path, own: Leases) -> None:
    with own.hold(["cell", "other"]):
        own.check()
        path = sign(tmp_path, "cell", **ELSEWHERE)  # taken over while this process slept
        with pytest.raises(LeaseLostError, match=r"cell cell: .*lost.*pid 1 on another-host has taken it over"):
            own.check()
    assert holder(path) == "pid 1 on another-host"
    assert not lease_path(tmp_path, "other").exists()


def test_who_lost_a_lease_no_longer_touches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)
    own = Leases(tmp_path)
    with own.hold(["cell"]):
        path = sign(tmp_path, "cell", **ELSEWHERE)
        os.utime(path, (1, 1))
        time.sleep(0.2)
        assert path.stat().st_mtime == 1
    own.close()


def test_a_lease_that_came_before_the_removal_stays(tmp_path: Path, own: Leases) -> None:
    path = sign(tmp_path, "cell", pid=dead_pid())
    dead = path.read_bytes()
    newer = replace(leases._own_signature(), host="faster")
    path.write_text(json.dumps(asdict(newer)))
    leases._remove(path, dead)
    assert leases._signature(path) == newer
    assert [item.name for item in path.parent.iterdir()] == ["lease"]


def test_the_right_to_remove_a_lease_belongs_to_one_and_is_inherited_from_the_dead(tmp_path: Path, own: Leases) -> None:
    path = sign(tmp_path, "cell", pid=dead_pid())
    dead = path.read_bytes()
    rights: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_may_take", lambda right: bool(rights.append(right)))
        leases._remove(path, dead)
    (right,) = rights
    right.write_text(json.dumps(asdict(leases._own_signature())))
    leases._remove(path, dead)
    assert path.read_bytes() == dead
    right.write_text(json.dumps(asdict(replace(leases._own_signature(), pid=dead_pid()))))
    leases._remove(path, dead)
    assert list(path.parent.iterdir()) == []


def test_many_threads_without_any_lock_never_hold_a_lease_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flock is asked for; dead leases that all want to take over lie in the way."""
    import filelock

    monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: pytest.fail("a lock was asked for"))
    dead, inside, most, held = dead_pid(), [0], [0], [0]
    deadline = time.monotonic() + 60  # how often each is held depends on who else computes, so no number of tries

    def worker() -> None:
        own = Leases(tmp_path)
        while held[0] < 60 and time.monotonic() < deadline:
            with contextlib.suppress(LeasedError), own.hold(["cell"]):
                inside[0] += 1
                most[0], held[0] = max(most[0], inside[0]), held[0] + 1
                time.sleep(0.0005)
                inside[0] -= 1
            if not lease_path(tmp_path, "cell").exists():
                with contextlib.suppress(OSError):
                    draft = sign(tmp_path, f"draft-{secrets.token_hex(8)}", pid=dead)  # no lease is ever rewritten
                    os.link(draft, lease_path(tmp_path, "cell"))
        own.close()

    threads = [threading.Thread(target=worker) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held[0] >= 60 and most[0] == 1


def test_a_lease_that_comes_while_a_place_is_found_empty_stays(
    tmp_path: Path, own: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = lease_path(tmp_path, "cell"), leases._content

    def late(at: Path) -> bytes | None:
        found = read(at)
        if found is None and at == path:
            sign(tmp_path, "cell")
        return found

    monkeypatch.setattr(leases, "_content", late)
    assert leases.freed(path) and read(path) is not None


def test_a_lease_that_can_be_read_but_once_stays_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sign(tmp_path, "cell")
    answers = iter([path.read_bytes()])
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_content", lambda _: next(answers, None))
        assert not leases.freed(path)
    assert path.exists()


@pytest.mark.parametrize("content", ["", "{", '{"host": "h"}'])
def test_a_damaged_right_does_not_keep_a_dead_lease(tmp_path: Path, own: Leases, content: str) -> None:
    path = sign(tmp_path, "cell", pid=dead_pid())
    right = path.with_name(f".taking-{hashlib.sha256(path.read_bytes()).hexdigest()[:32]}")
    right.write_text(content)
    assert leases.freed(path) and list(path.parent.iterdir()) == []


def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, own: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UsageError, match=r"no hard links.*runs=DIR"), own.hold(["cell"]):
        pass
    assert not list((tmp_path / "cells" / "cell").iterdir())


@pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", '{"host": "h"}', '{"host": "h", "pid": "x"}', "\x00"])
def test_an_unsigned_lease_is_nobodys(tmp_path: Path, own: Leases, content: str) -> None:
    path = sign(tmp_path, "cell")
    path.write_text(content)
    assert holder(path) is None
    with own.hold(["cell"]):
        pass


def test_the_heartbeat_touches_held_leases_and_stops_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.02)
    own = Leases(tmp_path)
    path = lease_path(tmp_path, "cell")
    with own.hold(["cell"]):
        os.utime(path, (1, 1))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 2
        own.close()
        time.sleep(0.1)
        os.utime(path, (1, 1))
        time.sleep(0.1)
        assert path.stat().st_mtime == 1


def test_other_cells_are_free(tmp_path: Path, own: Leases) -> None:
    with own.hold(["a"]), Leases(tmp_path).hold(["b"]):
        assert holder(lease_path(tmp_path, "a")) and holder(lease_path(tmp_path, "b"))


def test_the_same_cell_named_twice_is_one_lease(tmp_path: Path, own: Leases) -> None:
    with own.hold(["a", "a"]):
        assert holder(lease_path(tmp_path, "a"))
    assert not lease_path(tmp_path, "a").exists()


def test_leases_of_the_dead_are_cleared_and_those_of_the_living_are_not(tmp_path: Path, own: Leases) -> None:
    with own.hold(["a"]):
        dead = sign(tmp_path, "b", pid=dead_pid())
        clear(tmp_path, ["a", "b", "c"])
        assert lease_path(tmp_path, "a").exists() and not dead.exists()
