"""A stage on which many runners of one sweep play, each thread for itself a process of a node, one moving at a time.

The code of runner, pool, worker, leases and records is the real one, and so are the files.  Hosts, boots, pids, what a
process remembers of leases, pipes and the clock are the stage's, so a sweep of hours takes minutes and goes the same
way each time.  A killed process is a thread that never moves again; nothing of it is cleaned up.
"""

import builtins
import functools
import heapq
import io
import itertools
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paper_repro.base.files import CodeState
from paper_repro.cells import estimates, leases, pool, runner, worker
from paper_repro.cells.tasks import Task

OPERATIONS = ("stat", "listdir", "scandir", "link", "unlink", "mkdir", "rmdir", "replace", "utime", "chmod", "open")
"""What a file server is asked for by a path; "open" stands for the reading or writing after it, too."""
CODE = CodeState("0" * 40, False)
_FORK_SECONDS = 0.05


@dataclass(eq=False)
class Process:
    """What a thread takes for its process."""

    host: str
    runner: int
    pid: int
    alive: bool = True
    actors: list["Actor"] = field(default_factory=list)
    children: list["Process"] = field(default_factory=list)
    seen: dict[Any, Any] = field(default_factory=dict)

    def kill(self) -> None:
        """End it and what it has started; nothing of them moves again."""
        for process in (self, *self.children):
            process.alive = False
            for actor in process.actors:
                actor.over = True


class Actor:
    """A thread of a process, which moves when the stage lets it."""

    def __init__(self, stage: "Stage", process: Process, label: str, work: Callable[[], object], at: float) -> None:
        self.stage, self.process, self.label, self.over = stage, process, label, False
        self.turn, self.stamp = threading.Semaphore(0), 0
        self._work = work
        process.actors.append(self)
        threading.Thread(target=self._run, daemon=True).start()
        stage.wake(self, at)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._work()
        except BaseException as error:
            self.stage.error = error
        self.over = True
        self.stage.back.release()


class Stage:
    """The clock, whose turn it is, and what files were asked for.

    Args:
        root: the folder of records; files elsewhere are not counted.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.now = f"{root}/", 0.0
        self.error: BaseException | None = None
        self.back = threading.Semaphore(0)
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.by_runner = Counter[int]()
        self.actor: Actor
        self._waiting: list[tuple[float, int, Actor]] = []
        self._numbers = itertools.count(1)
        self.living: dict[tuple[str, int], Process] = {}

    def process(self, host: str, number: int, parent: Process | None = None) -> Process:
        found = Process(host, number, next(self._numbers) + 100)
        self.living[host, found.pid] = found
        if parent is not None:
            parent.children.append(found)
        return found

    def wake(self, actor: Actor, at: float) -> None:
        actor.stamp = next(self._numbers)
        heapq.heappush(self._waiting, (at, actor.stamp, actor))

    def sleep(self, until: float) -> None:
        """Let the others move until then, or until somebody wakes this actor."""
        actor = self.actor
        self.wake(actor, until)
        self.back.release()
        actor.turn.acquire()

    def play(self) -> None:
        while self._waiting:
            at, stamp, actor = heapq.heappop(self._waiting)
            if actor.over or stamp != actor.stamp:
                continue
            self.now, self.actor = max(self.now, at), actor
            actor.turn.release()
            self.back.acquire()
            if self.error is not None:
                raise self.error

    def count(self, operation: str) -> None:
        self.counts[self.actor.label][operation] += 1
        self.by_runner[self.actor.process.runner] += 1

    def start_of(self, pid: int) -> int | None:
        found = self.living.get((self.actor.process.host, pid))
        return pid if found is not None and found.alive else None


class Remembered:
    """What each process remembers of leases, behind one name."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def get(self, key: Any, default: Any = None) -> Any:
        return self._stage.actor.process.seen.get(key, default)

    def __getitem__(self, key: Any) -> Any:
        return self._stage.actor.process.seen[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._stage.actor.process.seen[key] = value


class Channel(worker.Channel):
    """What a worker tells, kept until its runner listens."""

    def __init__(self, told: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(sys.stderr)
        self._told = told

    def emit(self, event: str, **content: Any) -> None:
        self._told({"event": event, **content})


class WorkerOfRunner:
    """A worker as the pool sees it."""

    _numbers = itertools.count(10**6)

    def __init__(self) -> None:
        self.number, self.pipe = next(self._numbers), os.open(os.devnull, os.O_RDONLY)
        self.queue: list[dict[str, Any]] = []
        self.closed, self.silent, self.cause = False, False, "killed by signal 9"
        self.code: int | None = None

    def events(self) -> list[dict[str, Any]]:
        found, self.queue, self.silent = self.queue, [], self.closed
        return found


class Servers:
    """The one fork server of a runner."""

    def __init__(self, stage: Stage, runs: Path) -> None:
        self._stage, self._runs, self.owner = stage, runs, stage.actor
        self.socket, self.ended, self.code_changed = -1, False, False
        self.gone: list[WorkerOfRunner] = []
        self.heard: list[WorkerOfRunner] = []

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def of(self, config: Mapping[str, Any]) -> "Servers":
        return self

    def counting(self, devices: Mapping[str, Any]) -> Callable[..., list[None]]:
        return lambda found, others: [None for _ in found]

    def fork(self, **message: Any) -> WorkerOfRunner:
        stage, own = self._stage, WorkerOfRunner()
        process = stage.process(self.owner.process.host, self.owner.process.runner, self.owner.process)

        def told(event: dict[str, Any]) -> None:
            if event["event"] != "progress":
                own.queue.append(event)
                self.heard.append(own)
                stage.wake(self.owner, stage.now)

        def work() -> None:
            held = leases.Leases(self._runs)
            channel = Channel(told)
            channel.leases = held
            worker.Worker(self._runs, channel, held, CODE).run(message)
            held.close()
            ended(0)
            process.kill()

        def ended(code: int) -> None:
            own.code, own.closed = code, True
            self.gone.append(own)
            stage.wake(self.owner, stage.now)

        Actor(stage, process, "worker", work, stage.now + _FORK_SECONDS)
        process_kill = process.kill

        def killed() -> None:
            process_kill()
            if own.code is None and self.owner.process.alive:
                ended(-9)

        process.kill = killed  # type: ignore[method-assign]
        return own

    def hear(self) -> list[WorkerOfRunner]:
        found, self.gone = self.gone, []
        return found


class Selector:
    """What a pool waits by: its next look, or what its workers say."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._map = stage, dict[int, Callable[[], object]]()
        self.pool: Any = None

    def register(self, found: int, _: int, data: Callable[[], object]) -> None:
        self._map[found] = data

    def unregister(self, found: int) -> None:
        del self._map[found]

    def get_map(self) -> Mapping[int, Callable[[], object]]:
        return self._map

    def close(self) -> None:
        self._map.clear()

    def select(self, timeout: float) -> list[tuple[SimpleNamespace, int]]:
        servers: Servers = self.pool._servers
        if not (servers.heard or servers.gone):
            idle = not self.pool._elsewhere and self.pool._running
            self._stage.sleep(self._stage.now + (3600.0 if idle else pool.ELSEWHERE_POLL_SECONDS))
        ready = {one.pipe for one in servers.heard}
        servers.heard.clear()
        if servers.gone:
            ready.add(servers.socket)
        return [(SimpleNamespace(fd=found, data=self._map[found]), 1) for found in sorted(ready & self._map.keys())]


def prepare(stage: Stage, task: Task) -> None:
    """Give each thread its own process, clock and memory, and count what files are asked for."""
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: stage.now})
    beating = SimpleNamespace(
        Event=functools.partial(_Event, stage),
        Lock=threading.Lock,
        Thread=lambda target, daemon: SimpleNamespace(
            start=lambda: Actor(stage, stage.actor.process, "heartbeat", target, stage.now)
        ),
    )
    stand_ins: list[tuple[Any, str, Any]] = [
        (leases, "time", clock),
        (pool, "time", clock),
        (leases, "_seen", Remembered(stage)),
        (leases, "_place", lambda: (f"boot of {stage.actor.process.host}", "pid:[1]")),
        (leases, "_start_of", stage.start_of),
        (leases, "socket", SimpleNamespace(gethostname=lambda: stage.actor.process.host)),
        (leases, "threading", beating),
        (os, "getpid", lambda: stage.actor.process.pid if hasattr(stage, "actor") else 1),
        (pool, "selectors", SimpleNamespace(EVENT_READ=1, DefaultSelector=lambda: Selector(stage))),
        (runner, "Servers", functools.partial(Servers, stage)),
        (worker, "task_of", lambda config: task),
        (worker, "_log_to", _NoLog),
        (worker, "traceback", SimpleNamespace(print_exc=lambda: None)),
        (estimates, "shape", lambda cell: cell.key[0][1]),  # reads no files, and is the same for every runner
    ]
    for module, name, stand_in in stand_ins:
        setattr(module, name, stand_in)
    for name in OPERATIONS:
        setattr(os, name, _counted(stage, name, getattr(os, name)))
    os.lstat, os.remove, os.rename = os.stat, os.unlink, os.replace
    io.open = builtins.open = _counted(stage, "open", io.open)
    _label(pool.Pool, "_look_elsewhere", stage, "elsewhere")
    _label(pool.Pool, "drain", stage, "walk", "end")
    own_init = pool.Pool.__init__

    def init(self: Any, *words: Any, **named: Any) -> None:
        own_init(self, *words, **named)
        self._selector.pool = self

    pool.Pool.__init__ = init  # type: ignore[method-assign]


def _counted(stage: Stage, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def count(path: Any, *words: Any, **named: Any) -> Any:
        if not isinstance(path, int) and os.fspath(path).startswith(stage.root):
            stage.count(name)
        return real(path, *words, **named)

    return count


def _label(owner: Any, name: str, stage: Stage, label: str, after: str | None = None) -> None:
    real = getattr(owner, name)

    def labelled(*words: Any) -> Any:
        actor = stage.actor
        before, actor.label = actor.label, label
        try:
            return real(*words)
        finally:
            actor.label = after or before

    setattr(owner, name, labelled)


class _Event:
    def __init__(self, stage: Stage) -> None:
        self._stage, self._set = stage, False

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float) -> bool:
        if not self._set:
            self._stage.sleep(self._stage.now + seconds)
        return self._set


class _NoLog:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        os.close(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644))

    def __exit__(self, *_: object) -> None:
        pass
