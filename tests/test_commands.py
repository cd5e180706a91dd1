"""The commands as a user types them, the wrong ones too."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paper_repro import __main__ as command
from paper_repro.base import files
from paper_repro.base.configs import parse
from paper_repro.base.errors import MISUSE, RESULTS, ROOT, run_main
from paper_repro.cells.records import read
from paper_repro.launchers import start
from paper_repro.scripts import reproduce, train
from paper_repro.tables import plan as plans
from paper_repro.tables import spec
from paper_repro.tables.spec import artifacts
from paper_repro.tests.support import synthetic

Command = Callable[..., tuple[int, str, str]]


def test_an_exact_artifact_runs_under_any_scale_word_and_closes_with_its_claims(call: Command, tmp_path: Path) -> None:
    code, out, err = call("reproduce.py", "ebt/tableD1", "scale=smoke", f"runs={tmp_path}")
    assert code == 0, err
    assert "| 8.97 %  | 8.97 %  | fitted" in out  # one reading of several gives it
    folder = tmp_path / "ebt/tableD1/exact"
    tables = {f"table.{end}" for end in ("md", "csv", "tex", "json")}
    assert {path.name for path in folder.iterdir()} == tables | {f"figure.{end}" for end in ("csv", "png", "svg")}
    last = err.strip().splitlines()[-1]
    where = re.escape(str(folder / "table.md"))
    assert re.fullmatch(rf"ebt/tableD1: 10 cells, \d+ s; claims: \d .*; look at {where}", last), last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cem/tabel3"], r"unknown artifact 'cem/tabel3' \(did you mean 'cem/table3'\?\)"),
        (["cem/table3", "scale=huge"], "cem/table3 has no scale 'huge'"),
        (["cem/table3", "data.kernle=rbf"], r"unknown key 'data.kernle' \(did you mean 'data.kernel'\?\)"),
        (["cem/table3", "seeds=zero"], "whole numbers"),
        (["cem/table3", "sedes=0"], r"unknown setting sedes= \(did you mean 'seeds'\?\)"),
        (["cem/table3", "--rendr"], r"unknown option --rendr \(did you mean '--render'\?\)"),
        (["cem/table3", "--render", "--publish"], "exclude each other"),
        (["cem/table3", "--published", "--render"], "--published goes with a run"),
        (["--plan"], "which artifact"),
        (["cem/table3", "--publish", "training.steps=5"], "altered runs cannot be published"),
        (["ebt/tableD1", "ngpt/fig7", "scale=nothing"], "nothing"),  # the last is checked before the first is run
        (["ebt/tableD1", "--render", "runs=absent"], "runs=absent: there is no such folder"),
        (["cem/table3", f"runs={RESULTS}"], "the committed reference"),
        (["cem/table3", "--plan", f"runs={ROOT / 'Makefile'}"], "this is no folder; give runs=DIR"),
        (["cem/table3", "--seeds", "--cells"], "--seeds needs a value"),
        (["cem/table3", "lr=0.1", "--plan"], r"did you mean optimizer.lr\?"),
        (["cem/table3", "experiment=cem/gaussian_process"], "train.py cem/gaussian_process trains that one"),
        (["inner_steps"], "artifact 'inner_steps' lacks its paper: give cem/inner_steps"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_2(words, message, call, tmp_path):
    if not any(word.startswith("runs") for word in words):
        words = [*words, f"runs={tmp_path / 'runs'}"]
    code, _, err = call("reproduce.py", *words)
    assert code == 2 and re.search(message, err, re.IGNORECASE) and err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1 and not list(tmp_path.glob("runs/cells/*"))


def test_a_plan_counts_with_the_speed_of_its_machine_and_warns_of_a_slow_one(tmp_path, monkeypatch):
    from paper_repro.cells import estimates
    from paper_repro.cells.estimates import UNMEASURED_GPU_RATE, slow_products, unmeasured_rate

    config = {"machine": {"accelerator": "gpu", "devices": 8}}
    assert unmeasured_rate(config) == 8 * UNMEASURED_GPU_RATE > 1000 * unmeasured_rate({"machine": {}})
    narrow = {"machine": {"accelerator": "cpu"}, "training": {"precision": "bf16-mixed"}}
    information = tmp_path / "cpuinfo"
    monkeypatch.setattr(estimates, "CPUINFO", information)
    assert slow_products(narrow) is None, "nobody can know"
    information.write_text("processor\t: 0\nflags\t\t: fma avx2\n\nprocessor\t: 1\nflags\t\t: avx512f\n")
    assert "training.precision=32-true" in (slow_products(narrow) or "")
    assert slow_products({"training": {"precision": "32-true"}}) is None
    information.write_text("processor\t: 0\nflags\t\t: fma avx2 avx512f\n")
    assert slow_products(narrow) is None


def test_cells_lead_from_a_row_to_its_record(call: Command) -> None:
    code, out, _ = call("reproduce.py", "cem/table3", "--cells", "seeds=0", "scale=cpu")
    assert code == 0
    (row,) = [line for line in out.splitlines() if "kernel=rbf, model=t2 " in line]
    identity, _, seed, status, made_by, path = re.split(r" {2,}", row.strip())
    assert (identity, seed, status, made_by) == ("95071d22e59ea75a", "0", "finished (reference)", "not recorded")
    assert path.endswith(f"results/cells/{identity}/record.json")
    cells = re.findall("^[0-9a-f]{16} ", out, re.MULTILINE)
    assert len(cells) == 40, "30 settings, and two baselines of 5 kernels"


def test_cells_without_a_result_or_without_data_say_so(call, tmp_path, monkeypatch):
    _, out, _ = call("reproduce.py", "cem/table3", "--cells", "training.steps=7", f"runs={tmp_path}")
    of_models = [line for line in out.splitlines() if "model=" in line]
    assert len(of_models) == 120 and all(re.search(r" not run +- +-$", line) for line in of_models)
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path)
    code, out, _ = call("reproduce.py", "ngpt/fig7", "--cells", "seeds=77", f"runs={tmp_path}")
    assert code == 0 and "no data" in out and "run: python scripts/prepare_data.py" in out


NOTEBOOK = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "JPY_PARENT_PID": "1",
    "PYTHONIOENCODING": "ascii",
    "PYTHONWARNINGS": "error",
    "HOME": "/dev/null",
    "TMPDIR": "/dev/null/none",
    "XDG_CACHE_HOME": "/dev/null/cache",
}
"""A notebook's variables, an ASCII terminal, warnings that are errors, and folders that cannot be."""
COMMANDS = [
    (["train.py", "--list"], 0, True),
    (["reproduce.py", "cem/none"], 2, False),
    (["reproduce.py", "--list"], 0, True),
    (["think.py", "none", "--prompt", "a"], 2, False),
    (["prepare_data.py", "--help"], 0, True),
    (["report.py", "from=/dev/null/none"], 2, False),
    (["bench.py", "none"], 2, False),
]
"""Words, exit code, and whether something is printed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "failed"),
    [("", 0), (">&-", 1), (">/dev/full", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1), ("| true", 0)],
)
def test_no_command_ends_with_a_traceback(output: str, failed: int) -> None:
    environment = {**os.environ, **NOTEBOOK}
    environment.pop("TERM", None)
    started = []
    for words, code, prints in COMMANDS:
        line = f'"$0" "$@" {output}; exit ${{PIPESTATUS[0]}}'
        command = ["bash", "-c", line, sys.executable, str(ROOT / "scripts" / words[0]), *words[1:]]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="ascii"
        )
        started.append((process, words, failed if prints else code))
    for process, words, code in started:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, (words, out, err)
        assert "Traceback" not in out + err and err.count("\n") <= 1, (words, err)
        if code and "2>" not in output:
            assert err.startswith("error: "), words


def test_a_run_without_any_data_says_so_and_writes_no_table(call, tmp_path, monkeypatch):
    monkeypatch.setattr("paper_repro.base.files.DATA", tmp_path / "data")
    code, said, errors = call("reproduce.py", "cem/fig2c", f"runs={tmp_path / 'runs'}")
    assert code == 1 and not said
    assert "run: python scripts/prepare_data.py" in errors and "no table is written" in errors
    assert not (tmp_path / "runs" / "cem").exists()


def test_a_metric_that_no_cell_has_is_named_in_the_table_and_ends_the_command(call, tmp_path, monkeypatch):
    said = "no metric of that name (did you mean 'score'?)"
    text = synthetic.ARTIFACT.replace("  score:", "  scoer:").replace("metric: score", "metric: scoer")
    plan, runs = synthetic.plan(tmp_path / "papers", text, "smoke"), tmp_path / "runs"
    outcome = synthetic.finished(error=0.5, score=1.0)
    synthetic.fill(runs, plan, lambda cell: outcome if cell.seed else None)
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(tmp_path / "papers"))
    line = text.partition("  scoer:")[0].count("\n") + 1
    code, table, errors = call("reproduce.py", "made/up", "scale=smoke", "--render", f"runs={runs}")
    place = f"{tmp_path / 'papers/made/up.yaml'}:{line}"
    assert code == 2 and errors.splitlines()[-1].startswith(f"error: {place}: 'scoer': the finished cells have {said}")
    assert table.count(f"| {said} ") == 5, "four places and a claim"


def test_faulty_python_beside_a_yaml_stops_the_run_before_the_first_cell(call, tmp_path, monkeypatch):
    path = synthetic.write_artifact(tmp_path / "papers").with_suffix(".py")
    path.write_text("import os\nraise ValueError('no such rate')\n")
    monkeypatch.setenv("PAPER_REPRO_PAPERS", str(tmp_path / "papers"))
    with pytest.raises(ValueError, match="no such rate"):
        call("reproduce.py", "made/up", "scale=smoke", f"runs={tmp_path / 'runs'}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("training.precision=foo", "training.precision='foo': expected 32-true or 64-true or "),
        ("data.batch_size=0", "data.batch_size=0: expected a whole number of 1 or more"),
        ("optimizer.lr=-1", "optimizer.lr=-1: expected a learning rate of 0 or more"),
        ("machine.workers=0", "machine.workers=0: expected a whole number of 1 or more"),
        ("machine.nodes=2", "machine.nodes=2: the same command has to be started on every node"),
    ],
)
@pytest.mark.parametrize("start", [("train.py", "cem/gaussian_process"), ("reproduce.py", "cem/table3")], ids=str)
def test_a_value_that_the_words_tell_is_refused_before_torch_is_asked(start, word, said, call, tmp_path, monkeypatch):
    monkeypatch.setattr("paper_repro.cells.runner.estimate", None)  # would count with torch
    code, _, errors = call(*start, word, f"runs={tmp_path / 'runs'}")
    assert code == 2 and said in errors and len(errors.splitlines()) == 1, errors


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["cem", "Table1", "table3", "ebt/figb1"], ["cem/table1", "cem/table3", "ebt/figB1"]),
        (["results/CEM/table3"], ["cem/table3"]),
        ([str(ROOT / "paper_repro/papers/cem/table3.yaml")], ["cem/table3"]),
        (["results/cem/", "cem/t*3"], artifacts(["cem"])),
    ],
)
def test_artifacts_are_found_as_a_user_writes_them(words: list[str], ids: list[str]) -> None:
    assert artifacts(words) == ids


def test_a_file_of_the_same_name_elsewhere_is_not_taken_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "cem" / "table3.yaml"
    path.parent.mkdir()
    path.write_text(synthetic.ARTIFACT)
    with pytest.raises(ValueError, match=f"set PAPER_REPRO_PAPERS={tmp_path} and give cem/table3"):
        artifacts([str(path)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((f"a={path}", path) for path in ("/tmp/Ü", "/a b", "/a=b", "/a,b", "~/(a)", "/it's", '/"a"', "/a[1]{2}")),
        *(("a=[1,2]", [1, 2]), ("a='/x,y'", "/x,y"), ("a=1e-3", 1e-3), ("++a=null", None), (r"a=/x\,y", "/x,y")),
    ],
)
def test_a_path_is_taken_as_it_stands_and_hydras_grammar_holds(text: str, value: object) -> None:
    assert parse(text).value == value


def test_documentation_and_what_needs_no_download_is_prepared_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "DATA", tmp_path)
    monkeypatch.setenv("PAPER_REPRO_DATA", str(tmp_path))
    of_the_paper = plans.make(spec.load("ngpt/table4"), "paper", [0]).cells
    assert all(cell.missing for cell in of_the_paper) and start.commands(of_the_paper) == []  # nothing is downloaded
    words = ["ngpt/table4", "scale=smoke", f"runs={tmp_path / 'runs'}"]
    assert run_main(reproduce.main, words) == 1
    assert "--prepare prepares first what is missing: python scripts/prepare_data.py" in capsys.readouterr().err
    done = list[list[str]]()

    def prepared(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        done.append(command[2:])
        (tmp_path / "documentation-512").mkdir()
        (tmp_path / "documentation-512" / "manifest.json").write_text("{}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(start.subprocess, "run", prepared)
    monkeypatch.setattr(reproduce, "_cells", lambda plan, *_: int(any(cell.missing for cell in plan.cells)))
    assert run_main(reproduce.main, [*words, "--prepare"]) == 0
    assert done == [["documentation", "--download", "--vocabulary", "512"]]


def test_a_package_that_only_some_commands_need_is_named_with_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    def main(words: Sequence[str]) -> int:
        raise ModuleNotFoundError("No module named 'datasets'", name="datasets")

    assert run_main(main, []) == MISUSE
    assert capsys.readouterr().err == "error: datasets is not installed: pip install 'paper-repro[data]'\n"


def test_a_command_gives_its_words_and_its_exit_code_on(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    assert command.main([]) == 2 and "\n    reproduce " in capsys.readouterr().out
    assert command.main(["reproduc", "cem/table3"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'reproduc' (did you mean 'reproduce'?)\n"
    assert command.main(["reproduce", "cem/tabel3"]) == 2
    assert "did you mean 'cem/table3'" in capsys.readouterr().err
    assert command.main(["reproduce", "--help"]) == 0
    told = capsys.readouterr().out
    assert "paper-repro reproduce cem/table3 scale=smoke" in told and "reproduce.py" not in told


EXPERIMENT = "cem/gaussian_process"
SHORT = [EXPERIMENT, "training.steps=20", "machine.workers=1", "machine.progress_every_seconds=0"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([*SHORT, "--cfg", "job"], "steps: 20"),
        (["--cfg", "job", *SHORT, "optimizer=adam"], "_target_: torch.optim.Adam\n"),
        ([*SHORT, "--cfg", "job", "-p", "machine", "logger=csv"], "logger: csv"),
        ([*SHORT, "seed=0,1"], "To sweep over it, add --multirun"),
        ([*SHORT, "-m", "optimizer.lr=1,2", "optimizer.lrr=1,2"], "did you mean 'optimizer.lr'?"),
        ([*SHORT, "-m", "seed=x,y"], "seed 'x' is not a whole number"),
        ([*SHORT, "--cgf", "job"], "did you mean '--cfg'?"),
        (["training.steps=20"], "give one experiment"),
        (["cem/table3"], "cem/table3 is an artifact, not an experiment: run scripts/reproduce.py cem/table3"),
        (["--config", f"experiment={EXPERIMENT}", "seed=7"], "# the seed 7"),
        (["--config", "cem/Gaussian_Process"], "batch_size: 200"),
        (["--config", f"paper_repro/conf/experiment/{EXPERIMENT}.yaml"], "batch_size: 200"),
        (["--config", EXPERIMENT, "--seed", "7"], "unknown option --seed: write seed=..."),
        (["--config", EXPERIMENT, "machine.data_root=/tmp/Ü"], "data_root: /tmp/Ü"),
        (["--config", EXPERIMENT, "trainer.max_steps=10"], "did you mean training.steps?"),
        (["--config", EXPERIMENT, "logger=wandb"], "logger: wandb"),
        (["--config", EXPERIMENT, "ckpt_path=last.ckpt"], "a run goes on from its last checkpoint by itself"),
        (["--config", EXPERIMENT, "lr=0.1"], "did you mean optimizer.lr?"),
    ],
)
def test_words_of_hydra_and_of_habit_are_answered(words, answer, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_main(train.main, [*words, f"runs={tmp_path / 'runs'}"])
    printed = capsys.readouterr()
    assert answer in printed.out + printed.err and len(printed.err.splitlines()) <= 1
    assert not (tmp_path / "outputs").exists() and not (tmp_path / "runs" / "cells").exists()


@pytest.mark.slow
def test_a_sweep_trains_each_combination_into_the_folder_that_hydra_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["-m", *SHORT, "optimizer.lr=1e-3,3e-3", "seed=0,1", f"hydra.sweep.dir={tmp_path / 'mine'}"]
    assert run_main(train.main, words) == 0
    records = [read(path) for path in (tmp_path / "mine" / "cells").glob("*/record.json")]
    assert {(one.config["optimizer"]["lr"], one.seed) for one in records} == {
        (rate, seed) for rate in (1e-3, 3e-3) for seed in (0, 1)
    }
    assert capsys.readouterr().out.count("finished") == 4 and sorted(p.name for p in tmp_path.iterdir()) == ["mine"]
