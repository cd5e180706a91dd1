"""A tokenizer of bytes, models that know what they want, and a small MMLU of our own."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from paper_repro.models.gpt import GPT

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


def small_gpt(block_length: int = 64, seed: int = 0) -> GPT:
    """Random, in float64, with logits far enough from equal."""
    torch.manual_seed(seed)
    model = GPT(vocabulary_size=260, block_length=block_length, width=16, num_heads=2, num_layers=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


SIZES = {"fruit": 7, "small_rivers": 5}
"""Subjects of our own, with their number of test questions."""


def questions(subject: str, split: str) -> list[list[str]]:
    """Rows as in the original CSV files; commas, quotes and line ends within a field among them."""
    count = SIZES[subject] if split == "test" else 5
    rows = []
    for number in range(count):
        letter = "ABCD"[(number * 3 + len(subject) + (split == "dev")) % 4]
        asked = f'Which {subject}, number {number},\nis "it"?'
        rows.append([asked, f"{number} one", f"{number + 1}, two", "three", f"{subject[:number]}four", letter])
    return rows


def write_csv(folder: Path, subjects: Sequence[str] = tuple(SIZES)) -> Path:
    """The original layout."""
    for split in ("dev", "test"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for subject in subjects:
            with (folder / split / f"{subject}_{split}.csv").open("w", newline="", encoding="utf-8") as stream:
                csv.writer(stream).writerows(questions(subject, split))
    return folder


def write_parquet(folder: Path) -> Path:
    """The hub's layout, with a subject that nobody asks for."""
    from pyarrow import Table
    from pyarrow.parquet import write_table

    (folder / "all").mkdir(parents=True)
    for split in ("dev", "test"):
        rows = [
            {"question": row[0], "subject": subject, "choices": row[1:5], "answer": "ABCD".index(row[5])}
            for subject in ("fruit", "small_rivers")
            for row in questions(subject, split)
        ]
        rows.insert(3, {"question": "?", "subject": "other", "choices": ["", "", "", ""], "answer": 0})
        write_table(Table.from_pylist(rows), folder / "all" / f"{split}-00000-of-00001.parquet")
    return folder
