"""Processes of several nodes that torchrun or srun started, which train cells together.

Rank 0 runs the command as a computer alone would; the worker that it gives a cell to posts it in the group's store, and
all other ranks, which wait there, train it with that worker.  While they do, each rank's heartbeat stands in the store.
Rank 0 takes a rank for lost whose heartbeat has stopped, and says so there; a rank that reads that, or cannot reach the
store, ends.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from paper_repro.base.errors import BY_TORCHRUN, STOPPING, Place, UsageError
from paper_repro.cells.tasks import NODE_LOST, Cell, StopRequestedError
from paper_repro.training import single
from paper_repro.training.build import build
from paper_repro.training.machine import Machine, settings
from paper_repro.training.ranks import PATIENCE, Rank, join

BEAT_SECONDS = 2.0
SILENT_SECONDS = 20.0
"""A rank whose heartbeat has stopped for so long is lost, and its node with it."""
_REPLY = timedelta(seconds=SILENT_SECONDS)
_END = b"end"
_LEFT = "left"
"""The key that counts the ranks which ask the store no more."""


@dataclass(frozen=True)
class Group:
    """This process among those of all nodes."""

    place: Place
    environment: ClusterEnvironment

    def connect(self, opened: bool = False) -> Any:
        """Return the group's store; that of torchrun is there, that of srun is opened by rank 0's command."""
        environment = self.environment
        agent = self.place.by == BY_TORCHRUN and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            environment.main_address,
            environment.main_port,
            is_master=opened and not agent,
            wait_for_workers=False,
            timeout=_REPLY,
        )
        return _part(store, f"paper_repro/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")

    def join(self, store: Any, number: int, machine: Machine) -> Rank:
        """Meet the other ranks for the group's job of that number."""
        place, local, node = self.place, self.environment.local_rank(), self.environment.node_rank()
        met = _part(store, f"job/{number}/group")
        return join(place.rank, place.count, met, machine.device_of(local), local, node)


def _part(store: Any, name: str) -> Any:
    """Return the part of a store whose keys begin with a name."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def group(place: Place) -> Group:
    """Return Lightning's view of a place.

    Raises:
        UsageError: Lightning refuses the way in which srun was called.
    """
    if place.by == BY_TORCHRUN:
        return Group(place, TorchElasticEnvironment())
    try:
        return Group(place, SLURMEnvironment(auto_requeue=False))
    except RuntimeError as error:
        raise UsageError(f"srun: {error}") from error


@contextlib.contextmanager
def led(place: Place, cell: Cell, folder: Path, machine: Machine) -> Iterator[Rank]:
    """This process as rank 0, the other ranks training the same cell until the block ends.

    Raises:
        UsageError: the machine section asks for another number of processes than were started.
    """
    if place.count != machine.count:
        raise UsageError(
            f"machine.nodes={machine.nodes} with machine.devices={machine.devices} are {machine.count} processes, "
            f"{place.by} started {place.count}: start as many per node as it has devices"
        )
    own = group(place)
    store = own.connect()
    number = int(store.add("jobs", 1))
    folder.mkdir(parents=True, exist_ok=True)
    store.set(f"job/{number}", json.dumps({"cell": cell.id, "config": cell.config, "folder": str(folder)}))
    heart = Heart(own, number)
    try:
        yield own.join(store, number, machine)
    except (StopRequestedError, UsageError):
        heart.end()
        dist.destroy_process_group()
        raise
    except Exception:
        heart.wait_for_verdict()  # it may be but the lost connection to a rank that was killed
        raise
    heart.end()
    dist.destroy_process_group()


def follow(place: Place) -> int:
    """Train with rank 0 what it posts, until it says that there is no more; returns the exit code."""
    for name in STOPPING:  # rank 0 hears them and stops all after the same step
        signal.signal(name, signal.SIG_IGN)
    own = group(place)
    store = _patiently(own)
    code = _follow(own, store)
    store.add(_LEFT, 1)
    return code


def _follow(own: Group, store: Any) -> int:
    number = 0
    while True:
        number += 1
        content = _next(own, store, number)
        if content == _END:
            return 0
        job = json.loads(content)
        if not Path(job["folder"]).is_dir():
            why = f"{_name(own)} does not see {job['folder']}: give a folder that all nodes share, runs=DIR"
            print(why, file=sys.stderr, flush=True)
            return 1
        heart = Heart(own, number)
        try:
            _train(own, store, number, job)
        except UsageError as error:
            print(f"{_name(own)}: {error}", file=sys.stderr, flush=True)
            return 1
        except Exception:
            heart.wait_for_verdict()
            raise
        heart.end()


def _train(own: Group, store: Any, number: int, job: dict[str, Any]) -> None:
    machine = Machine.of(job["config"]["machine"])
    with settings(machine):
        built = build(Cell(job["cell"], job["config"]))
        rank = own.join(store, number, machine)
        with contextlib.suppress(StopRequestedError):
            single.train(built, Path(job["folder"]), single.Silence(), rank)
        dist.destroy_process_group()


class Heart:
    """A thread that says that this rank lives, and ends the process where another does not."""

    def __init__(self, own: Group, number: int) -> None:
        self._own, self._prefix = own, f"job/{number}"
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def wait_for_verdict(self) -> None:
        """Give the other ranks the time to be found dead, which ends this process; return if none is."""
        time.sleep(SILENT_SECONDS + 5 * BEAT_SECONDS)

    def _run(self) -> None:
        try:
            store = self._own.connect()
            self._beat(store)
        except Exception as error:
            if not self._over.is_set():
                _end_without_store(self._own, str(error).partition("\n")[0])

    def _beat(self, store: Any) -> None:
        place, beat = self._own.place, 0
        heard = {rank: (b"", time.monotonic()) for rank in range(place.count)}
        while not self._over.is_set():
            beat += 1
            with _answered(self._own):
                store.set(f"{self._prefix}/beat/{place.rank}", json.dumps([beat, _name(self._own)]))
                if place.rank == 0:
                    for rank, (before, since) in heard.items():
                        key = f"{self._prefix}/beat/{rank}"
                        now = store.get(key) if store.check([key]) else b""
                        if now != before:
                            heard[rank] = now, time.monotonic()
                        elif time.monotonic() - since > SILENT_SECONDS:
                            name = json.loads(before)[1] if before else f"rank {rank}"
                            store.set(f"{self._prefix}/lost", f"{name} was not heard of for {SILENT_SECONDS:.0f} s")
                if store.check([f"{self._prefix}/lost"]):
                    lost = store.get(f"{self._prefix}/lost").decode()
                    if place.rank == 0:  # whose command keeps the store; the others read it first
                        time.sleep(2 * BEAT_SECONDS)
                    _end_process(self._own, lost)
            self._over.wait(BEAT_SECONDS)


@contextlib.contextmanager
def _answered(own: Group) -> Iterator[None]:
    """End this process if the store has not answered what is asked of it in the block, or failed, after a while.

    A node that loses its power or its network closes no connection, so a rank that waits for it waits on.
    """
    timer = threading.Timer(SILENT_SECONDS, _end_without_store, (own, f"no answer for {SILENT_SECONDS:.0f} s"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_without_store(own: Group, why: str) -> NoReturn:
    _end_process(own, f"the node of rank 0, {own.environment.main_address}, cannot be reached ({why})")


def _end_process(own: Group, why: str) -> NoReturn:
    advice = "start all nodes again, it goes on from its last checkpoint"
    print(f"{why}: {_name(own)} ends too; {advice}", file=sys.stderr, flush=True)
    os._exit(NODE_LOST)


def _name(own: Group) -> str:
    return f"node {own.environment.node_rank()} ({socket.gethostname()}, rank {own.place.rank})"


def _patiently(own: Group) -> Any:
    """Connect to a store that rank 0 may not have opened yet."""
    until = time.monotonic() + PATIENCE.total_seconds()
    while True:
        try:
            return own.connect()
        except dist.DistError:
            if time.monotonic() > until:
                raise
            time.sleep(BEAT_SECONDS)


def _next(own: Group, store: Any, number: int) -> bytes:
    """Wait for the group's job of that number; where the store is gone, rank 0 is."""
    key = f"job/{number}"
    while True:
        with _answered(own):
            if store.check([key]):
                content: bytes = store.get(key)
                return content
        time.sleep(BEAT_SECONDS / 4)


def end(own: Group, store: Any) -> None:
    """Tell the other ranks that there is no more to train, and keep the store until they ask it no more.

    The store of srun ends with rank 0's process.  Ranks that have died never answer, so the wait has an end.
    """
    store.set(f"job/{int(store.add('jobs', 1))}", _END)
    until = time.monotonic() + SILENT_SECONDS
    while int(store.add(_LEFT, 0)) < own.place.count - 1 and time.monotonic() < until:
        time.sleep(BEAT_SECONDS / 20)
