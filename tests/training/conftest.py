from typing import Any

import pytest

from paper_repro.cells import planned
from paper_repro.cells.tasks import Cell, StopRequestedError
from paper_repro.tests.support import ebt_language
from paper_repro.tests.support.reports import Recorder
from paper_repro.training.fit import Fit

DOUBLES = "paper_repro.tests.training.doubles"
LANGUAGE = [
    *("model.width=8", "model.num_heads=2", "model.num_layers=1", "data.files.manifest=corpus/manifest.json"),
    *(f"model.vocabulary_size={ebt_language.TOKENIZER.vocabulary_size}", "data.num_evaluation_batches=1"),
    *("training.steps=4", "training.clip_norm=0.1", "optimizer.lr=0.01", "schedule.warmup_fraction=0"),
    *("machine.threads=1", "machine.progress_every_seconds=0", "machine.compile=false", "data.window=16"),
    "training.precision=64-true",
]


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
def language(tmp_path):
    """Cells on documents of 4 to 12 words in windows of 16: targets are padded, so that rows weigh differently."""
    ebt_language.documents(tmp_path)

    def make(*words, model="ebt/transformer", seed=0):
        own = [f"model={model}", *LANGUAGE, f"machine.data_root={tmp_path}", *words]
        cell = planned.single("ebt/language", own, seed)
        return Cell(cell.id, cell.config)

    return make


@pytest.fixture
def run():
    def run_to_the_end(cells, folder, stops=()):
        for stop in stops:
            with pytest.raises(StopRequestedError):
                Fit().run(cells, folder, Recorder(stop))
        return Fit().run(cells, folder, Recorder())

    return run_to_the_end
