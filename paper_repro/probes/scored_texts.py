"""Texts that EBT's probes score a model on: documents of validation, and sets of other distributions by name."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.identity import IGNORED
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.text import VAL, TextData
from paper_repro.datamodules.text_sets import AbsentTextsError, TextSet

VALIDATION = "validation"
Pair = tuple[Tensor, Tensor]


def check_sets(names: Sequence[str]) -> None:
    """Check the names of text sets; ``validation`` is the data's own.

    Raises:
        ValueError: none, an unknown name, or one twice.
    """
    if not names or len(set(names)) < len(names):
        raise ValueError(f"sets must be different names of text sets, at least one, got {list(names)}")
    for name in names:
        if name != VALIDATION:
            TextSet(name)


def scored_batches(data: CounterBasedDataModule, name: str, num_texts: int, batch_size: int) -> list[Pair]:
    """Return the first ``num_texts`` texts of a set as batches (ids (B, T), next ids (B, T)).

    They are the same for every model and seed.  Places that no text of a batch reaches are cut off.

    Raises:
        AbsentTextsError: the files of a set are not there.
        UsageError: data without a tokenizer, or damaged files.
    """
    at_least("num_texts", num_texts)
    if name == VALIDATION:
        rows = [row for ids, following in data.evaluation_batches(VAL) for row in zip(ids, following, strict=True)]
        chosen = rows[:num_texts]
        batches = [_stacked(chosen[first : first + batch_size]) for first in range(0, len(chosen), batch_size)]
    else:
        if not isinstance(data, TextData):
            raise UsageError(f"text sets need a tokenizer, the data are {type(data).__name__}")
        texts = TextSet(name, num_texts, cache=data.cache)
        batches = list(texts.batches(data.tokenizer, data.window, batch_size, data.data_root))
    return [_cut(*batch) for batch in batches]


def lack(name: str, error: AbsentTextsError) -> str:
    """Return what a record says of a set whose files are absent: it names no folder of this machine."""
    return f"needs {name}: {error.command}; then use --fill"


def _stacked(rows: Sequence[Pair]) -> Pair:
    ids, following = zip(*rows, strict=True)
    return torch.stack(ids), torch.stack(following)  # (B, T) each


def _cut(ids: Tensor, following: Tensor) -> Pair:
    reached = int((following != IGNORED).any(0).nonzero().max()) + 1
    return ids[:, :reached], following[:, :reached]  # (B, T) each
