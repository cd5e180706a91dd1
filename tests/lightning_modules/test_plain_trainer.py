"""Each module under a plain Trainer and a plain DataModule of Lightning: training, validation, test and checkpoints."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from paper_repro.base.configs import compose
from paper_repro.training.build import build_module

BLOCK = ("model.width=8", "model.num_heads=2", "model.num_layers=1")
TEXT = (*BLOCK, "model.vocabulary_size=13", "model.block_length=6")
IMAGE = (*BLOCK, "model.image_size=8", "model.patch=4", "model.channels=1")
FRAMES = (*BLOCK, "model.state_size=4", "model.block_length=5")
FACE = ("model.channels=1", "model.size=8", "model.patch=4", "model.stride=2", "model.width=12", "model.num_heads=2")
FACES = (*FACE, "model.head_width=4", "model.num_memories=8", "module.free_steps=3", "module.nudged_steps=2")
NRGPT = ("model.width=8", "model.vocabulary_size=13", "model.block_length=6")
CASES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "CEMGaussianProcess": ("cem/gaussian_process", ("model.num_inputs=3", "model.width=8"), "points"),
    "CEMSlimPajama": ("cem/slimpajama", (*TEXT, "model.hidden=16"), "text"),
    "CETCelebA": ("cet/celeba", FACES, "masked"),
    "EBTLanguage": ("ebt/language", TEXT, "text"),
    "EBTLanguage, replayed": ("ebt/language", ("model=ebt/s2", *TEXT, "module.replay.rows=2"), "text"),
    "TransformerLanguage": ("ebt/language", ("model=ebt/transformer", *TEXT), "text"),
    "EBTDenoising": ("ebt/denoising", IMAGE, "images"),
    "DiffusionDenoising": ("ebt/denoising", ("model=ebt/dit", *IMAGE), "images"),
    "EBTVideo": ("ebt/video", FRAMES, "frames"),
    "TransformerVideo": ("ebt/video", ("model=ebt/video_transformer", *FRAMES), "frames"),
    "EBTSudoku": ("ebt/sudoku", BLOCK, "boards"),
    "SudokuClassifier": ("ebt/sudoku", ("model=ebt/sudoku_recursive", *BLOCK), "boards"),
    "NGPTSpeedup": ("ngpt/speedup", TEXT, "text"),
    "NRGPTListOps": ("nrgpt/listops", NRGPT, "text"),
    "NRGPTOpenWebText": ("nrgpt/owt", (*NRGPT, "model.num_heads=1"), "text"),
    "NRGPTShakespeare": ("nrgpt/shakespeare", (*NRGPT, "model.num_heads=1"), "text"),
}


def tensors(kind: str) -> tuple[Tensor, ...]:
    """Return eight samples."""
    torch.manual_seed(1)
    ids, images = torch.randint(13, (8, 7)), torch.rand(8, 1, 8, 8) * 2 - 1
    return {
        "points": (torch.rand(8, 3), torch.randn(8)),
        "text": (ids[:, :-1], ids[:, 1:]),
        "masked": (images * (torch.rand(8, 1, 8, 8) > 0.5), images),
        "images": (images,),
        "frames": (torch.randn(8, 6, 4),),
        "boards": (torch.randint(10, (8, 81)), torch.randint(1, 10, (8, 81))),
    }[kind]


class Plain(L.LightningDataModule):
    """The same two batches to train, to validate and to test."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.samples = tensors(kind)

    def train_dataloader(self) -> DataLoader[Any]:
        alone = None if len(self.samples) > 1 else lambda rows: torch.stack([row[0] for row in rows])
        return DataLoader(TensorDataset(*self.samples), batch_size=4, collate_fn=alone)

    val_dataloader = test_dataloader = train_dataloader


def trainer(folder: Path, **options: Any) -> L.Trainer:
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(default_root_dir=folder, **{**quiet, "enable_checkpointing": False, **options})


@pytest.mark.parametrize("name", CASES)
def test_a_plain_trainer_runs_each_module_and_its_best_checkpoint_is_a_module_again(name: str, tmp_path: Path) -> None:
    experiment, overrides, kind = CASES[name]
    module, data = build_module(compose(experiment, overrides)), Plain(kind)
    assert type(module).__name__ == name.partition(",")[0]
    metrics = list(module.new_metrics())
    before = {key: value.detach().clone() for key, value in module.named_parameters()}
    quick = trainer(tmp_path, fast_dev_run=True)
    quick.fit(module, datamodule=data)
    assert {f"val_{metric}" for metric in metrics} | {"train_loss"} <= quick.callback_metrics.keys()
    assert any(not torch.equal(before[key], value) for key, value in module.named_parameters())
    best = ModelCheckpoint(tmp_path, "best", monitor=f"val_{metrics[0]}")
    trainer(tmp_path, max_epochs=2, callbacks=[best], enable_checkpointing=True).fit(module, datamodule=data)
    loaded = type(module).load_from_checkpoint(best.best_model_path)
    state = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert loaded.seed == module.seed
    assert all(torch.equal(value, state[key]) for key, value in loaded.state_dict().items())
    (found,) = trainer(tmp_path).test(loaded, datamodule=data, verbose=False)
    assert found.keys() == {f"test_{metric}" for metric in metrics}
    assert all(torch.isfinite(torch.tensor(value)) for value in found.values())
