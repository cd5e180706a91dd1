"""The cross-entropy of counted token pairs on a cell's evaluation batches: a task that trains nothing.

Letters: N pairs of a token and the next.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from paper_repro.base.errors import UsageError, at_least
from paper_repro.base.identity import IGNORED
from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report
from paper_repro.datamodules.counter_based import CounterBasedDataModule
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.listops import ListOpsData
from paper_repro.datamodules.text import TRAIN, StreamData, TextData
from paper_repro.datamodules.text_sets import AbsentTextsError
from paper_repro.metrics.counts import BigramCounts, cross_entropy
from paper_repro.probes.floor_task import FloorTask
from paper_repro.probes.scored_texts import check_sets, lack, scored_batches

Pairs = tuple[Tensor, Tensor]
Tokens = TextData | ListOpsData
HELD_OUT = 20
"""One twentieth of the training data is held out to choose the weight of the pairs; then all of it is counted."""


class BigramFloor(FloorTask):
    """Measures what a count of the training data reaches on the batches that a trained model is evaluated on.

    Metrics, for each split but "train":

    * ``<split>_loss``: nats per token of the bigram, interpolated with the unigram.  The weight is chosen on training
      data that were held out from the counts, never on the split itself.
    * ``<split>_unigram_loss``: nats per token of the unigram.

    Each set of texts in ``sets`` counts as a split; it is not available where its files are absent.

    Also ``bigram_weight``, the weight, and ``counted_tokens``, the pairs of tokens that were counted.  Documents are
    cut as in training.

    Args:
        most_tokens: the first so many training tokens are counted; all, where there are fewer.
        sets: names of ``datamodules.text_sets``, or "validation", the first documents of the evaluation.
        num_texts: of each set, at most.

    Raises:
        ValueError: a number below 1, an unknown set, or one twice.
    """

    kinds = (TextData, ListOpsData)
    takes = "counts tokens of texts or ListOps"

    def __init__(self, most_tokens: int = 2**27, sets: Sequence[str] = (), num_texts: int = 64) -> None:
        self.most_tokens = at_least("most_tokens", most_tokens)
        self.sets, self.num_texts = sets, at_least("num_texts", num_texts)
        if sets:
            check_sets(sets)

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(self.data_of(cell.config)) for cell in cells]

    def _outcome(self, data: Tokens) -> Outcome:
        counts, weight = self.counts(data)
        metrics = {"bigram_weight": weight, "counted_tokens": float(counts.pair_counts.sum())}
        for split in data.splits:
            if split != TRAIN:
                pairs = evaluated_pairs(data, split)
                metrics[f"{split}_loss"] = cross_entropy(counts.bigram(*pairs, weight))
                metrics[f"{split}_unigram_loss"] = cross_entropy(counts.unigram(pairs[1]))
        lacking: dict[str, str] = {}
        for name in self.sets:
            try:
                pairs = counted_pairs(scored_batches(data, name, self.num_texts, self.num_texts))
            except AbsentTextsError as error:
                lacking |= {f"{name}_{kind}loss": lack(name, error) for kind in ("", "unigram_")}
                continue
            metrics[f"{name}_loss"] = cross_entropy(counts.bigram(*pairs, weight))
            metrics[f"{name}_unigram_loss"] = cross_entropy(counts.unigram(pairs[1]))
        return Outcome(FINISHED, metrics=metrics, data_hashes=data.data_hashes(), unavailable=lacking)

    def counts(self, data: Tokens) -> tuple[BigramCounts, float]:
        """Return the counts of the training data and the weight of the pairs.

        Raises:
            UsageError: data other than documents or streams, or too few to hold some out.
        """
        size = _vocabulary(data)
        kept, held_out = _training_pairs(data, self.most_tokens)
        if not len(kept[0]) or not len(held_out[0]):
            raise UsageError(f"BigramFloor needs at least {HELD_OUT} documents or windows to count, there are fewer")
        weight = BigramCounts.of(*kept, size).best_weight(*held_out)
        previous, following = (torch.cat(parts) for parts in zip(kept, held_out, strict=True))
        return BigramCounts.of(previous, following, size), weight


def evaluated_pairs(data: CounterBasedDataModule, split: str) -> Pairs:
    """Return the tokens before those that are scored in a split's evaluation, and these, (N,) each."""
    return counted_pairs(data.evaluation_batches(split))


def counted_pairs(batches: Iterable[Pairs]) -> Pairs:
    """Return the tokens of batches (B, T) before those that are scored, and these, (N,) each."""
    found = [(ids[following != IGNORED], following[following != IGNORED]) for ids, following in batches]
    previous, following = zip(*found, strict=True)
    return torch.cat(previous), torch.cat(following)


def _vocabulary(data: Tokens) -> int:
    if isinstance(data, ListOpsData):
        return len(data.task.vocabulary)
    return data.model_vocabulary or data.tokenizer.vocabulary_size


def _training_pairs(data: Tokens, most: int) -> tuple[Pairs, Pairs]:
    """Return the pairs to count first, and those that are held out from them."""
    if isinstance(data, DocumentData):
        texts = list(_documents(data, most))
        held_out = texts[HELD_OUT - 1 :: HELD_OUT]
        del texts[HELD_OUT - 1 :: HELD_OUT]
        return _pairs(texts), _pairs(held_out)
    ids, window = _stream(data, most), data.window  # (N + 1,)
    previous, following = ids[:-1].view(-1, window), ids[1:].view(-1, window)
    is_kept = torch.arange(len(previous)) % HELD_OUT != HELD_OUT - 1
    return (
        (previous[is_kept].flatten(), following[is_kept].flatten()),
        (previous[~is_kept].flatten(), following[~is_kept].flatten()),
    )


def _documents(data: DocumentData, most: int) -> Iterator[Tensor]:
    """Yield documents as they are cut for training."""
    documents, left = data.documents[TRAIN], most
    for index in range(len(documents)):
        ids = documents.ids(index, data.window + 1)
        left -= len(ids)
        if left < 0:
            return
        yield torch.from_numpy(ids.astype("int64"))


def _stream(data: Tokens, most: int) -> Tensor:
    """Return a stream's whole windows and the token that follows the last, (N + 1,)."""
    if not isinstance(data, StreamData | ListOpsData):
        raise UsageError(f"BigramFloor counts documents or streams, the data are {type(data).__name__}")
    tokens = data.streams[TRAIN]
    length = min(most, len(tokens) - 1) // data.window * data.window + 1
    return tokens[:length] if isinstance(tokens, Tensor) else torch.from_numpy(tokens.window(0, length).astype("int64"))


def _pairs(texts: Sequence[Tensor]) -> Pairs:
    empty = torch.zeros(0, dtype=torch.int64)
    return torch.cat([empty, *(ids[:-1] for ids in texts)]), torch.cat([empty, *(ids[1:] for ids in texts)])
