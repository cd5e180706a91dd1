import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paper_repro.base.configs import CONF, compose
from paper_repro.base.errors import ROOT, UsageError
from paper_repro.cells import planned, runner
from paper_repro.cells.planned import check_machine
from paper_repro.kernels import preferences
from paper_repro.tests.support import sweeps

NUMBERS = ("workers", "threads", "devices", "checkpoint_every_steps", "stack.most")
WRONG: list[tuple[str, Any]] = [
    *((key, value) for key in NUMBERS for value in (0, -1, 1.5, True, "two", float("nan"), [], [1.5], {})),
    *(("checkpoint_every_seconds", value) for value in (0, -1, float("inf"), float("nan"), True, "soon", [1])),
    *(("progress_every_seconds", value) for value in (-1, float("nan"), None, "often")),
    *(("workers", value) for value in (None, [1])),
    *(("devices", value) for value in (None, [0, 0], [-1], [True])),
    *(("stack.over", value) for value in (None, "seed", [1], 3)),
    *(("stack.most", value) for value in (None,)),
    *(("stack", value) for value in (5, "seed", ["seed"])),
    *(("compile", value) for value in (None, 1, 0, "always", [True])),
    *(("cache", value) for value in (5, ["a"])),
    *(("logger", value) for value in ("tensorbord", True, 3, ["csv"], {})),
    *(("log_every_steps", value) for value in (0, -1, 1.5, True, None, "all")),
    *(("data_root", value) for value in (5, True)),
    *(("data_workers", value) for value in (-1, 1.5, True, None, "two")),
    *((key, value) for key in ("strategy", "implementation", "accelerator") for value in ("foo", None, True, ["ddp"])),
    *((key, value) for key in ("tf32", "recompute", "cuda_graph") for value in (None, 1, "auto", [True])),
    *(("fused_optimizer", value) for value in (1, "auto", [True])),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_what_no_machine_can_give_is_refused_with_key_and_value(key: str, value: Any) -> None:
    section: dict[str, Any] = {"workers": 1, "stack": {"over": ["seed"], "most": 2}}
    parent, _, last = key.rpartition(".")
    (section[parent] if parent else section)[last] = value
    with pytest.raises(UsageError) as caught:
        check_machine({"machine": section})
    assert f"machine.{key}={value!r}: expected" in str(caught.value) and "\n" not in str(caught.value)


def test_implementations_are_those_of_the_kernels() -> None:
    assert planned.IMPLEMENTATIONS == preferences.IMPLEMENTATIONS


@pytest.mark.parametrize("choice", sorted(path.stem for path in (CONF / "machine").glob("*.yaml")))
def test_what_is_shipped_is_accepted_and_null_where_it_has_a_meaning(choice: str) -> None:
    config = compose("cem/gaussian_process", [f"machine={choice}", "machine.threads=null"])
    check_machine(config)
    for key, value in {
        "compile": "auto",
        "checkpoint_every_seconds": None,
        "devices": [0, 2],
        "progress_every_seconds": 0,
    }.items():
        check_machine({"machine": {**config["machine"], key: value}})
    check_machine({})


@pytest.mark.slow
@pytest.mark.parametrize(
    "override", ["machine.workers=0", "machine.workers=-1", "machine.threads=0", "machine.checkpoint_every_steps=soon"]
)
@pytest.mark.parametrize("words", [["train.py", "cem/gaussian_process"], ["reproduce.py", "cem/table3", "--plan"]])
def test_the_commands_refuse_it_in_one_line_and_at_once(words: list[str], override: str, tmp_path: Path) -> None:
    program = (
        "import runpy, sys\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print('torch' in sys.modules)"
    )
    script = str(ROOT / "scripts" / words[0])
    command = [sys.executable, "-c", f"import sys; sys.argv = sys.argv[1:]\n{program}", script, *words[1:], override]
    command.append(f"runs={tmp_path / 'runs'}")
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert found.returncode == 2, found.stdout + found.stderr
    assert found.stderr.startswith(f"error: {override.partition('=')[0]}") and len(found.stderr.splitlines()) == 1
    assert found.stdout == "False\n" and not list(tmp_path.iterdir())


def test_a_worker_is_not_told_of_threads_that_nobody_asked_for(tmp_path: Path) -> None:
    cells = sweeps.cells(1, steps=1)
    cells[0].config["machine"]["threads"] = None
    assert runner.run(cells, tmp_path).exit_code == 0
