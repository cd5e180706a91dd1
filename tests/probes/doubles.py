"""A tokenizer of bytes, models that know what they want, and a small MMLU of our own."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pyarrow import Table
from pyarrow.parquet import write_table
from torch import Tensor, nn

from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.models.gpt import GPT
from paper_repro.training.module import PaperModule
from paper_repro.training.schedules import Cosine

END = 256


class Bytes:
    """One token a byte, and one for the end of a text."""

    vocabulary_size = 257
    fingerprint = "bytes"

    def __init__(self, end_of_text: int | None = END) -> None:
        self.end_of_text = end_of_text

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(item for item in ids if item < END).decode(errors="replace")


class Text(CounterBasedDataModule):
    """Data of which a probe reads the tokenizer alone."""

    splits = ("val",)
    tokenizer: Any = Bytes()

    def train_batch(self, step: int) -> None:
        raise AssertionError("a probe draws no training batch")

    def evaluation_batches(self, split: str) -> Iterator[None]:
        raise AssertionError("nor an evaluation batch")


class Silent(Text):
    tokenizer = None


class Module(PaperModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.eval(), torch.optim.AdamW, Cosine())


class Reciting(nn.Module):
    """Gives the token after position t a logit of 5 if it is the next of ``text`` after the last end of ``cue``.

    ``seen`` keeps the ids of every call.
    """

    def __init__(self, cue: str, text: str, block_length: int) -> None:
        super().__init__()
        self.cue, self.text, self.block_length = cue.encode(), [*text.encode(), END], block_length
        self.seen: list[list[int]] = []

    def forward(self, ids: Tensor) -> Tensor:
        assert ids.shape[1] <= self.block_length
        logits = torch.zeros(*ids.shape, 260)  # a vocabulary padded beyond the tokenizer's
        logits[..., 259] = 100.0  # never generated
        for row, own in enumerate(ids.tolist()):
            self.seen.append(own)
            whole, said = bytes(min(item, 255) for item in own), len(self.text)
            for position in range(len(own)):
                cued = whole.startswith(self.cue, max(0, position + 1 - len(self.cue)), position + 1)
                said = 0 if cued else said + 1
                if said < len(self.text):
                    logits[row, position, self.text[said]] = 5.0
        return logits


def small_gpt(block_length: int = 64) -> GPT:
    """Random, in float64, with logits far enough from equal."""
    torch.manual_seed(0)
    model = GPT(vocabulary_size=260, block_length=block_length, width=16, num_heads=2, num_layers=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


SIZES = {"fruit": 7, "small_rivers": 5}
"""Subjects of our own, with their number of test questions."""


def questions(subject: str, split: str) -> list[list[str]]:
    """Rows of a question, four choices and the letter of the right one."""
    count = SIZES[subject] if split == "test" else 5
    rows = []
    for number in range(count):
        letter = "ABCD"[(number * 3 + len(subject) + (split == "dev")) % 4]
        asked = f'Which {subject}, number {number},\nis "it"?'
        rows.append([asked, f"{number} one", f"{number + 1}, two", "three", f"{subject[:number]}four", letter])
    return rows


def write_mmlu(folder: Path) -> Path:
    """The hub's layout, with a subject that nobody asks for."""
    (folder / "all").mkdir(parents=True)
    for split in ("dev", "test"):
        rows = [
            {"question": row[0], "subject": subject, "choices": row[1:5], "answer": "ABCD".index(row[5])}
            for subject in SIZES
            for row in questions(subject, split)
        ]
        rows.insert(3, {"question": "?", "subject": "other", "choices": ["", "", "", ""], "answer": 0})
        write_table(Table.from_pylist(rows), folder / "all" / f"{split}-00000-of-00001.parquet")
    return folder


def write_task(folder: Path, name: str, files: dict[str, Path], metrics: Sequence[str] = ("acc",), **own: Any) -> None:
    """A task of lm-eval over local JSON lines; JSON is YAML."""
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {split: str(path) for split, path in files.items()},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
        "metric_list": [{"metric": key, "aggregation": "mean", "higher_is_better": True} for key in metrics],
        **own,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))
