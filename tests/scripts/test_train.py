"""train.py is a Hydra application: groups, sweeps, and what Hydra prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from paper_repro.base.errors import ROOT, run_main
from paper_repro.cells.records import read
from paper_repro.scripts import train

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
        ([*SHORT, "optimizer=adma"], "there is no such optimizer config (did you mean 'adam'?)"),
        (["training.steps=20"], "give one experiment"),
        (["--config", f"experiment={EXPERIMENT}", "seed=7"], "# the seed 7"),
        (["--config", "cem/Gaussian_Process"], "batch_size: 200"),
        (["--config", f"paper_repro/conf/experiment/{EXPERIMENT}.yaml"], "batch_size: 200"),
        (["--config", EXPERIMENT, "--seed", "7"], "unknown option --seed: write seed=..."),
        (["--config", EXPERIMENT, "machine.data_root=/tmp/Ü"], "data_root: /tmp/Ü"),
        (["--config", EXPERIMENT, "~training.clip_norm"], "deleting is not supported"),
        (["--config", EXPERIMENT, "optimizer.lr=1,2"], "a list as optimizer.lr=[1,2], or name the values as an axis"),
        (["--config", EXPERIMENT, "trainer.max_steps=10"], "did you mean training.steps?"),
        (["--config", EXPERIMENT, "logger=wandb"], "logger: wandb"),
        (["--config", EXPERIMENT, "ckpt_path=last.ckpt"], "a run goes on from its last checkpoint by itself"),
        (["--config", EXPERIMENT, "lr=0.1"], "did you mean optimizer.lr?"),
        (["--config", EXPERIMENT, "schedule=exponential"], "schedules.Exponential "),
    ],
)
def test_words_of_hydra_and_of_habit_are_answered(
    words: list[str], answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_main(train.main, [*words, f"runs={tmp_path / 'runs'}"])
    printed = capsys.readouterr()
    assert answer in printed.out + printed.err and len(printed.err.splitlines()) <= 1
    assert not (tmp_path / "outputs").exists() and not (tmp_path / "runs" / "cells").exists()


def test_info_shows_the_files_that_are_composed() -> None:
    command = [sys.executable, "scripts/train.py", *SHORT, "--info", "defaults-tree"]
    assert "optimizer: adamw" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_sweep_trains_each_combination_into_the_folder_that_hydra_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-m", *SHORT, "optimizer.lr=1e-3,3e-3", "seed=0,1", f"hydra.sweep.dir={tmp_path / 'mine'}"]
    assert run_main(train.main, words) == 0
    records = [read(path) for path in (tmp_path / "mine" / "cells").glob("*/record.json")]
    assert {(one.config["optimizer"]["lr"], one.seed) for one in records} == {
        (rate, seed) for rate in (1e-3, 3e-3) for seed in (0, 1)
    }
    assert capsys.readouterr().out.count("finished") == 4 and sorted(p.name for p in tmp_path.iterdir()) == ["mine"]
