"""Commands beside 5,000 records: what they read, and the processor time that they take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro.base.errors import RESULTS, ROOT
from paper_repro.cells import records

COUNT = 5000
SLOW = 3
"""How many times its limit a command may take, on a slow machine on which other tests run."""
CODE = """
import runpy, sys
read = []
def hear(event, arguments):
    if event == "open" and str(arguments[0]).endswith("record.json"):
        read.append(arguments[0])
sys.addaudithook(hear)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(f"{len(read)} records were read", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a runs folder with 5,000 whole records: copies of a published one, each with an id of its own."""
    folder = tmp_path_factory.mktemp("many")
    published = RESULTS / "cells" / "95071d22e59ea75a" / "record.json"
    content = json.loads(published.read_text())
    del content[records.SEAL]
    for number in range(COUNT):
        path = records.record_path(folder, f"{number:016x}")
        path.parent.mkdir(parents=True)
        path.write_bytes(records.sealed({**content, "cell": path.parent.name}))
    last = records.read(path)
    assert last.cell == path.parent.name and last.metrics == content["metrics"]
    return folder


def seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def call(*words: str) -> tuple[float, int, str]:
    """Return the processor seconds of a command, how many records it read, and what it printed."""
    before = seconds()
    command = [sys.executable, "-c", CODE, str(ROOT / "scripts" / "reproduce.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    taken = seconds() - before
    assert done.returncode == 0, done.stderr
    return taken, int(done.stderr.splitlines()[-1].split()[0]), done.stdout


@pytest.mark.slow
def test_an_artifact_is_rendered_in_two_seconds_and_reads_its_own_records_alone(runs: Path) -> None:
    seconds, read, printed = min(call("ebt/tableD1", "--render", f"runs={runs}") for _ in range(2))
    assert "| 8.97 %" in printed and 0 < read <= 2 * 10, "its ten cells, in two folders"
    assert seconds < SLOW * 2.0
