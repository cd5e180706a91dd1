from typing import Any

import pytest
import torch

from paper_repro.cells.tasks import Cell, StopRequestedError
from paper_repro.tests.support.compiled import GAINS, STEPS
from paper_repro.tests.support.reports import Recorder
from paper_repro.training import compile_trial, compiled_code, compiling
from paper_repro.training.fit import Fit

DOUBLES = "paper_repro.tests.training.doubles"


def make_cell(seed: int = 0, lr: float = 0.01, steps: int = 12, **changes: Any) -> Cell:
    config = {
        "task": {"_target_": "paper_repro.training.fit.Fit"},
        "module": {"_target_": "paper_repro.lightning_modules.cem_gaussian_process.CEMGaussianProcess"},
        "model": {"_target_": f"{DOUBLES}.Small"},
        "data": {"_target_": f"{DOUBLES}.Waves", "seed": seed},
        "optimizer": {
            "_target_": "torch.optim.AdamW",
            "_partial_": True,
            "lr": lr,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.1,
        },
        "schedule": {"_target_": "paper_repro.training.schedules.Cosine", "warmup_fraction": 0.0, "final_factor": 0.0},
        "training": {"steps": steps, "clip_norm": 1.0, "precision": "32-true"},
        "seed": seed,
        "machine": {
            "accelerator": "cpu",
            "devices": 1,
            "threads": 1,
            "checkpoint_every_seconds": None,
            "checkpoint_every_steps": None,
            "progress_every_seconds": 0.0,
        },
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section] = {**config[section], name: value} if name else value
    return Cell(f"cell-{seed}-{lr}", config)


@pytest.fixture
def cell():
    return make_cell


@pytest.fixture
def recorder():
    return Recorder


@pytest.fixture
def run():
    def run_to_the_end(cells, folder, stops=()):
        for stop in stops:
            with pytest.raises(StopRequestedError):
                Fit().run(cells, folder, Recorder(stop))
        return Fit().run(cells, folder, Recorder())

    return run_to_the_end


@pytest.fixture(scope="session")
def code_of_all_tests(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def compiled(monkeypatch, code_of_all_tests):
    """The folder of compiled code; the code of earlier tests lies there, and no verdict."""
    monkeypatch.setenv(compiled_code.ENVIRONMENT, str(code_of_all_tests))
    yield code_of_all_tests
    for path in (code_of_all_tests / compile_trial.FOLDER).glob("*.json"):
        path.unlink()


@pytest.fixture
def auto(cell):
    """Cells with machine.compile=auto, long enough to be asked about."""
    torch.compiler.reset()
    return lambda steps=STEPS, **changes: cell(steps=steps, machine__compile="auto", **changes)


@pytest.fixture
def no_trial(monkeypatch):
    """Make trying a kind of cells an error."""
    monkeypatch.setattr(compile_trial, "run", lambda *_: pytest.fail("a trial was made"))


@pytest.fixture
def tried(monkeypatch):
    """The ids of the cells that try, each of which finds GAINS; every cell counts as worth a trial."""
    found = []
    monkeypatch.setattr(compiling, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(compile_trial, "run", lambda built, *_: found.append(built.cell.id) or GAINS)
    return found
