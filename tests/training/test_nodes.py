"""Several processes that train one cell: of one node, and of two nodes as torchrun and srun start them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from safetensors.torch import load_file

from paper_repro.base import errors
from paper_repro.base.errors import ROOT, UsageError
from paper_repro.cells import planned
from paper_repro.cells.tasks import Cell
from paper_repro.launchers.start import leading
from paper_repro.tests.support import slurm_cluster, sweeps
from paper_repro.tests.support.reports import Recorder
from paper_repro.tests.training.doubles import assert_close_weights
from paper_repro.training import launch
from paper_repro.training.fit import Fit

TINY = [
    *("model.width=16", "model.num_steps=2", "data.window=32", "data.batch_size=2", "data.num_evaluation_batches=2"),
    *("data.task.num_train=200", "data.task.num_test=20", "training.accumulate=4", "probes.accuracy=null"),
    *("machine.checkpoint_every_steps=2", "machine.progress_every_seconds=0", "machine.compile=false"),
]
# The mean over four processes and that of four batches in one round differently, six steps amplify it.
RELATIVE = 1e-5
BOTH = ("machine.nodes=2", "machine.devices=2")


def start(before, runs, *words, environment=os.environ):
    """``train.py`` behind the words that start it, in a session of its own."""
    return subprocess.Popen(
        [*before, str(ROOT / "scripts" / "train.py"), "nrgpt/listops", *TINY, f"runs={runs}", *words],
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def nodes(runs, *words):
    """``torchrun`` on two nodes."""
    own = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *own]
    return [start([*command, f"--node-rank={rank}"], runs, *BOTH, *words) for rank in range(2)]


def step_of_slurm(runs, *words):
    """The four processes of a job step, without SLURM: each has the variables that srun would give it."""
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own |= {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}
    own |= {"SLURM_NTASKS_PER_NODE": "2"}
    started = []
    for rank in range(4):
        place = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 2), "SLURM_LOCALID": str(rank % 2)}
        started.append(start([sys.executable], runs, *BOTH, *words, environment={**os.environ, **own, **place}))
    return started


@contextlib.contextmanager
def srun(folder):
    """The same by a real srun on two nodes, where it is installed."""
    with slurm_cluster.running(folder / "slurm", nodes=2) as cluster:
        environment = {**cluster, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--kill-on-bad-exit=0", sys.executable]
        yield lambda runs, *words: [start(command, runs, *BOTH, *words, environment=environment)]


def training_nodes(runs):
    """Two nodes in the middle of a long training, with a checkpoint behind them."""
    first, second = nodes(runs, "training.steps=100000")
    sweeps.wait_for(lambda: [*runs.rglob("step-*.ckpt")], first, 300)
    return [first, second]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Weights and metrics of the cell on one process."""
    folder = tmp_path_factory.mktemp("one")
    cell = planned.single("nrgpt/listops", [*TINY, "training.steps=6", f"machine.cache={folder / 'cache'}"], 0)
    (outcome,) = Fit().run([Cell(cell.id, cell.config)], folder, Recorder())
    return load_file(folder / cell.id / "weights.safetensors"), outcome.metrics


def assert_equal(runs, one):
    """Compare the only record under ``runs`` and its weights with those of the cell on one process."""
    (path,) = runs.rglob("record.json")
    record = json.loads(path.read_text())
    assert record["status"] == "finished", record
    weights, metrics = one
    assert {name: record["metrics"][name] for name in metrics} == pytest.approx(metrics, rel=RELATIVE)
    assert_close_weights(load_file(path.parent / "weights.safetensors"), weights, RELATIVE)


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_cell_goes_on_from_its_checkpoint(tmp_path):
    process = start([sys.executable], tmp_path, "training.steps=60", "machine.devices=2")
    sweeps.wait_for(lambda: [*tmp_path.rglob("step-*.ckpt")], process)
    children = psutil.Process(process.pid).children(recursive=True)
    (rank,) = [item for item in children if any("spawn_main" in word for word in item.cmdline())]
    leader = rank.parent()
    rank.kill()
    gone, _ = psutil.wait_procs([leader], timeout=60)
    assert gone == [leader], "rank 0 waits for a dead process"
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "going on from its last checkpoint" in said and "finished" in said, said
    (record,) = tmp_path.rglob("record.json")
    assert json.loads(record.read_text())["status"] == "finished"
    assert (record.parent / "weights.safetensors").is_file() and not list(tmp_path.rglob("lease"))
    assert "rank 1) was not heard of" in (record.parent / "log.txt").read_text()


@pytest.mark.slow
def test_two_nodes_of_two_processes_equal_one_process(one, tmp_path):
    started = nodes(tmp_path / "runs", "training.steps=6")
    said = [process.communicate(timeout=500)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    assert_equal(tmp_path / "runs", one)


@pytest.mark.slow
@pytest.mark.parametrize("really", [False, True], ids=["variables", "srun"])
def test_a_job_step_of_srun_equals_one_process_and_no_rank_fails_at_its_end(really, one, tmp_path):
    """The store lives in rank 0's process, which must not end before the others know that all is done."""
    with srun(tmp_path) if really else contextlib.nullcontext(step_of_slurm) as starter:
        started = starter(tmp_path / "runs", "training.steps=6")
        said = [process.communicate(timeout=500)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
    assert "ends too" not in "".join(said)
    assert_equal(tmp_path / "runs", one)


@pytest.mark.slow
@pytest.mark.parametrize(("dies", "how"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (0, signal.SIGSTOP)])
def test_a_node_that_dies_ends_the_other_within_a_minute(dies, how, tmp_path):
    """A killed one closes its connections; one that lost its power, or its cable, leaves them open and is silent."""
    both = training_nodes(tmp_path)
    left = both[1 - dies]
    others = psutil.Process(left.pid).children(recursive=True)
    died, since = sweeps.kill(both[dies], how), time.monotonic()
    try:
        said, _ = left.communicate(timeout=100)
        assert time.monotonic() - since < 60 and left.returncode != 0, said
        found = f"node 1 ({socket.gethostname()}, rank" if dies else "the node of rank 0, 127.0.0.1, cannot be reached"
        assert found in said and "start all nodes again, it goes on" in said, said
        assert not dies or "was not heard of" in said
        assert dies or not any(item.is_running() for item in others)
        assert not list(tmp_path.rglob("record.json")) and list(tmp_path.rglob("step-*.ckpt"))
    finally:
        for item in [*died, *others]:
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()
        both[dies].communicate()


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4"}, ("torchrun", 3, 4)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, ("srun", 1, 2)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, None),
    ],
)
def test_a_process_knows_its_place(environment, place, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert errors.place() == (place and errors.Place(*place))


def test_a_node_without_the_shared_folder_says_so_where_errors_are_read(tmp_path, monkeypatch, capsys):
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    own = launch.group(errors.Place(errors.BY_TORCHRUN, 3, 4))
    hidden = tmp_path / "hidden" / "cells" / "c"
    job = json.dumps({"cell": "c", "folder": str(hidden)}).encode()
    assert launch._follow(own, SimpleNamespace(check=lambda keys: keys == ["job/1"], get=lambda key: job)) == 1
    said = capsys.readouterr()
    assert not said.out and not hidden.exists()
    assert re.fullmatch(rf"node 1 \(.*, rank 3\) does not see {hidden}: .* runs=DIR\n", said.err), said.err


def test_a_job_step_without_its_tasks_per_node_is_refused(monkeypatch):
    for name, value in {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "2")
    with pytest.raises(UsageError, match=r"--ntasks-per-node"), leading():
        pass


def test_nodes_without_torchrun_and_half_nodes_are_refused(cell, run, tmp_path, monkeypatch):
    several = cell(training__accumulate=4, machine__nodes=2, machine__devices=2)
    with pytest.raises(UsageError, match=r"machine\.nodes=2: the same command .* torchrun or srun"):
        run([several], tmp_path)
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"machine\.nodes=2 with machine\.devices=2 are 4 .*torchrun started 3"):
        run([several], tmp_path)
