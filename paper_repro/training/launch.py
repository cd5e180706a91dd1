"""Brings together the processes that train one cell on several devices, and ends them.

Rank 0 is the process that was given the cell; it alone speaks, writes and measures.  On one computer it starts a
process per further device; on several nodes torchrun or srun has started the processes.  Rank 0 posts its cell in the
group's store, and the other ranks, which wait there, train it, too.  Meanwhile each rank writes its heartbeat to the
store.  If one stops, rank 0 says so there; a rank that reads that, or cannot reach the store, ends.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from paper_repro.base.errors import BY_TORCHRUN, STOPPING, Place, UsageError, check_started, end_with_parent, place
from paper_repro.cells.tasks import NODE_LOST, Cell, StopRequestedError
from paper_repro.training import single
from paper_repro.training.build import build
from paper_repro.training.machine import Machine, Rank, Started, settings

BEAT_SECONDS = 2.0
SILENT_SECONDS = 20.0
"""A rank whose heartbeat has stopped for so long is lost, and its node with it."""
START_SECONDS = 100.0
"""How much longer a rank may take to come."""
PATIENCE = timedelta(days=7)
"""How long a process waits for another: rank 0 may be preparing data; that one has died is seen elsewhere."""
_END = b"end"
BY_US = "machine.devices"
_LEFT = "left"
"""The key that counts the ranks which ask the store no more."""


@contextlib.contextmanager
def launched(cell: Cell, folder: Path, machine: Machine) -> Iterator[Rank]:
    """This process as rank 0 of ``machine.count``, the others training the same cell until the block ends."""
    check_started(machine.nodes)
    if (own := place()) is None and machine.count == 1:
        yield Rank()
        return
    brought = _started(machine.count) if own is None else contextlib.nullcontext(group(own))
    with brought as found, _led(found, cell, folder, machine) as rank:
        yield rank


@contextlib.contextmanager
def _started(count: int) -> Iterator["Group"]:
    """Start the other ranks on this computer, which follow this process until the block ends."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
    own = Group(Place(BY_US, 0, count), Started())
    store = own.connect(opened=True)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_be_rank, args=(index, count)) for index in range(1, count)]
    for other in others:
        other.start()
    try:
        yield own
        end(own, store)
    finally:
        for other in others:
            other.kill()
            other.join()


def _be_rank(index: int, count: int) -> None:
    end_with_parent()
    os.environ["LOCAL_RANK"] = str(index)
    sys.exit(follow(Group(Place(BY_US, index, count), Started())))


def _train_with_rank_0(cell: Cell, folder: Path, meet: Callable[[Machine], Rank]) -> None:
    machine = Machine.of(cell.config["machine"])
    with settings(machine):
        built = build(cell)
        rank = meet(machine)
        with contextlib.suppress(StopRequestedError):
            single.train(built, folder, None, rank)
        dist.destroy_process_group()


@dataclass(frozen=True)
class Group:
    """This process among those of all nodes."""

    place: Place
    environment: ClusterEnvironment

    def __str__(self) -> str:
        return f"node {self.environment.node_rank()} ({socket.gethostname()}, rank {self.place.rank})"

    def connect(self, opened: bool = False) -> Any:
        """Return the group's store; that of torchrun is there, that of srun is opened by rank 0's command."""
        agent = self.place.by == BY_TORCHRUN and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            self.environment.main_address,
            self.environment.main_port,
            is_master=opened and not agent,
            wait_for_workers=False,
            timeout=timedelta(seconds=SILENT_SECONDS),
        )
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"paper_repro/{restart}", store)  # type: ignore[attr-defined]

    def join(self, store: Any, number: int, machine: Machine) -> Rank:
        """Meet the other processes in the store."""
        met = dist.PrefixStore(f"job/{number}/group", store)  # type: ignore[attr-defined]
        device = machine.device_of(self.environment.local_rank())
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend, index, count = "nccl" if device.type == "cuda" else "gloo", self.place.rank, self.place.count
        dist.init_process_group(backend, store=met, rank=index, world_size=count, timeout=PATIENCE)
        return Rank(index, count, self.environment, dist.new_group(backend="gloo", timeout=PATIENCE))

    def end_process(self, why: str) -> NoReturn:
        advice = "start all nodes again, it goes on from its last checkpoint"
        print(f"{why}: {self} ends too; {advice}", file=sys.stderr, flush=True)
        os._exit(NODE_LOST)

    def end_without_store(self, why: str) -> NoReturn:
        self.end_process(f"the node of rank 0, {self.environment.main_address}, cannot be reached ({why})")

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """End this process if the store does not answer: a node without power or network closes no connection."""
        timer = threading.Timer(SILENT_SECONDS, self.end_without_store, [f"no answer for {SILENT_SECONDS:.0f} s"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def group(place: Place) -> Group:
    if place.by == BY_TORCHRUN:
        return Group(place, TorchElasticEnvironment())
    try:
        return Group(place, SLURMEnvironment(auto_requeue=False))
    except RuntimeError as error:
        raise UsageError(f"srun: {error}") from error


@contextlib.contextmanager
def _led(own: Group, cell: Cell, folder: Path, machine: Machine) -> Iterator[Rank]:
    place = own.place
    if place.count != machine.count:
        raise UsageError(
            f"machine.nodes={machine.nodes} with machine.devices={machine.devices} are {machine.count} processes, "
            f"{place.by} started {place.count}: start as many per node as it has devices"
        )
    store = own.connect()
    number = int(store.add("jobs", 1))
    folder.mkdir(parents=True, exist_ok=True)
    store.set(f"job/{number}", json.dumps({"cell": cell.id, "config": cell.config, "folder": str(folder)}))
    with _heartbeat(own, number):
        try:
            yield own.join(store, number, machine)
        except (StopRequestedError, UsageError):
            dist.destroy_process_group()
            raise
    dist.destroy_process_group()


def follow(own: Group) -> int:
    """Train with rank 0 what it posts, until it says that there is no more; returns the exit code."""
    for name in STOPPING:  # rank 0 hears them
        signal.signal(name, signal.SIG_IGN)
    store = None
    while store is None:  # rank 0 may not have opened it yet
        try:
            store = own.connect()
        except dist.DistError:
            time.sleep(BEAT_SECONDS)
    code = _follow(own, store)
    store.add(_LEFT, 1)
    return code


def _follow(own: Group, store: Any) -> int:
    for number in itertools.count(1):
        key, content = f"job/{number}", b""
        while not content:
            with own.answered():
                content = store.get(key) if store.check([key]) else b""
            if not content:
                time.sleep(BEAT_SECONDS / 4)
        if content == _END:
            break
        job = json.loads(content)
        folder = Path(job["folder"])
        if not folder.is_dir():
            why = f"{own} does not see {folder}: give a folder that all nodes share, runs=DIR"
            print(why, file=sys.stderr, flush=True)
            return 1
        try:
            with _heartbeat(own, number):
                _train_with_rank_0(Cell(job["cell"], job["config"]), folder, partial(own.join, store, number))
        except UsageError as error:
            print(f"{own}: {error}", file=sys.stderr, flush=True)
            return 1
    return 0


@contextlib.contextmanager
def _heartbeat(own: Group, number: int) -> Iterator[None]:
    """Say in the block that this rank lives, and end the process where another does not.

    An error may be only the lost connection to a killed rank, which is given the time to be found dead.
    """
    over = threading.Event()

    def run() -> None:
        try:
            _beat(own, own.connect(), f"job/{number}", over)
        except Exception as error:
            if not over.is_set():
                own.end_without_store(str(error).partition("\n")[0])

    threading.Thread(target=run, daemon=True).start()
    try:
        yield
    except (StopRequestedError, UsageError):
        raise
    except Exception:
        time.sleep(SILENT_SECONDS + 5 * BEAT_SECONDS)
        raise
    finally:
        over.set()


def _beat(own: Group, store: Any, job: str, over: threading.Event) -> None:
    rank, beat = own.place.rank, 0
    heard = {other: (b"", time.monotonic() + START_SECONDS) for other in range(own.place.count)}
    while not over.is_set():
        beat += 1
        with own.answered():
            store.set(f"{job}/beat/{rank}", json.dumps([beat, str(own)]))
            for other, (before, since) in heard.items() if rank == 0 else ():
                key = f"{job}/beat/{other}"
                now = store.get(key) if store.check([key]) else b""
                if now != before:
                    heard[other] = now, time.monotonic()
                elif time.monotonic() - since > SILENT_SECONDS:
                    name = json.loads(before)[1] if before else f"rank {other}"
                    store.set(f"{job}/lost", f"{name} was not heard of for {SILENT_SECONDS:.0f} s")
            if store.check([f"{job}/lost"]):
                lost = store.get(f"{job}/lost").decode()
                if rank == 0:  # whose command keeps the store; the others read it first
                    time.sleep(2 * BEAT_SECONDS)
                own.end_process(lost)
        over.wait(BEAT_SECONDS)


def end(own: Group, store: Any) -> None:
    """Tell the other ranks that there is no more to train, and keep the store, for a while, until they have left."""
    store.set(f"job/{int(store.add('jobs', 1))}", _END)
    until = time.monotonic() + SILENT_SECONDS
    while int(store.add(_LEFT, 0)) < own.place.count - 1 and time.monotonic() < until:
        time.sleep(BEAT_SECONDS / 20)
