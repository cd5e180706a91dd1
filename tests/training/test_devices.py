import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paper_repro.base.errors import ROOT

TINY = [
    *("model.width=16", "model.num_steps=2", "data.window=32", "data.batch_size=4", "data.num_evaluation_batches=2"),
    *("data.task.num_train=200", "data.task.num_test=20", "training.accumulate=2", "probes.accuracy=null"),
    *("machine.checkpoint_every_steps=2", "machine.progress_every_seconds=0"),
]


def train(runs: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "nrgpt/listops", *TINY, f"runs={runs}", *overrides]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def rank_processes(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return [item for item in found if any("spawn_main" in word for word in item.cmdline())]


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_cell_goes_on_from_its_checkpoint(tmp_path):
    process = train(tmp_path, "training.steps=60", "machine.devices=2")
    until = time.monotonic() + 120
    while not list(tmp_path.rglob("step-*.ckpt")) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    (rank,) = rank_processes(process)
    leader = rank.parent()
    rank.kill()
    gone, _ = psutil.wait_procs([leader], timeout=20)
    assert gone == [leader], "rank 0 waits for a dead process"
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "killed by signal 9" in said
    assert "finished" in said
    (record,) = tmp_path.rglob("record.json")
    assert json.loads(record.read_text())["status"] == "finished"
    assert (record.parent / "weights.safetensors").is_file()
    assert not list(tmp_path.rglob("lease"))
    assert "rank 1 was killed by signal 9" in (record.parent / "log.txt").read_text()
