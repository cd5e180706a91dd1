"""Trivial baselines: what counts, means, linear maps and rules reach on a cell's data, without training.

Letters: N pairs of a token and the next, or points; B sequences, boards or windows; T tokens or frames; V token ids, or
numbers of a frame's state; K inputs.
"""

import functools
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from paper_repro.base.configs import built_by
from paper_repro.base.errors import UsageError, at_least, one_of
from paper_repro.base.identity import IGNORED
from paper_repro.cells.tasks import FINISHED, Cell, Cost, Findings, Outcome, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule, data_of
from paper_repro.datamodules.documents import DocumentData
from paper_repro.datamodules.listops import Item, ListOpsData
from paper_repro.datamodules.sudoku import SudokuData
from paper_repro.datamodules.sudoku_boards import CELLS, propagated
from paper_repro.datamodules.text import TRAIN, TextData
from paper_repro.datamodules.text_sets import AbsentTextsError
from paper_repro.datamodules.videos import VideoData
from paper_repro.metrics.counts import NONE, Counts, cross_entropy
from paper_repro.metrics.pooled import Mean
from paper_repro.probes.downstream import Downstream
from paper_repro.probes.listops_accuracy import WAYS
from paper_repro.probes.sudoku_accuracy import both_splits
from paper_repro.probes.thinking import check_sets, lack, scored_batches

Pairs = tuple[Tensor, Tensor]
Triples = tuple[Tensor, Tensor, Tensor]
Tokens = TextData | ListOpsData
HELD_OUT = 20
"""One twentieth of the training data is held out to choose the weights; then all of it is counted."""
MOST_TOKENS = 2**27
"""So many training tokens are counted, the first ones; all, where there are fewer."""
RIDGE = 1e-3
"""Added to each square of a linear map of frames, as a share of the mean of the squares that a weight multiplies."""


class FloorTask(Task):
    """A task that measures a trivial baseline; data of another kind are refused before anything runs."""

    kinds: ClassVar[tuple[type[CounterBasedDataModule], ...]]  # the data modules that it takes

    @abstractmethod
    def measured(self, data: Any) -> Findings:
        """Measure the baseline on data of one of the ``kinds``."""

    def check(self, config: Mapping[str, Any]) -> None:
        kind = built_by(config["data"]["_target_"])
        if not issubclass(kind, self.kinds):
            expected = " or ".join(one.__name__ for one in self.kinds)
            raise UsageError(f"{type(self).__name__} takes {expected}, the data are {kind.__name__}")

    def cost(self, config: Mapping[str, Any]) -> Cost | None:
        self.check(config)
        return None

    def outcome(self, cell: Cell, folder: Path) -> Outcome:
        self.check(cell.config)
        data = data_of(cell.config)
        found = self.measured(data)
        outcome = Outcome(FINISHED, found.metrics, data_hashes=data.data_hashes(), unavailable=found.unavailable)
        for name, content in found.attachments.items():
            outcome.attach(folder, name, content)
        return outcome


# Texts and ListOps.


class BigramFloor(FloorTask):
    """Measures a count of the training data's token pairs on the batches that a trained model is evaluated on.

    Metrics, for each split but "train" and each set of texts in ``sets`` whose files are there:

    * ``<split>_loss``: nats per token of the bigram, interpolated with the unigram.  The weight is chosen on training
      data that were held out from the counts, never on the split itself.
    * ``<split>_unigram_loss``: nats per token of the unigram.

    Also ``bigram_weight``, the weight, and ``counted_tokens``, the pairs of tokens that were counted.  Documents are
    cut as in training.

    Args:
        sets: names of ``datamodules.text_sets``, or "validation".
        num_texts: of each set, at most.
    """

    kinds = (TextData, ListOpsData)
    length = 2  # tokens that are counted together

    def __init__(self, sets: Sequence[str] = (), num_texts: int = 64) -> None:
        self.sets, self.num_texts = sets, at_least("num_texts", num_texts)
        check_sets(sets)

    def measured(self, data: Tokens) -> Findings:
        counts = self.counts(data)
        found = Findings({"bigram_weight": counts.weights[0], "counted_tokens": float(counts.group_counts.sum())})

        def score(name: str, batches: Iterable[Pairs]) -> None:
            pairs = counted_triples(batches)[1:]
            found.metrics[f"{name}_loss"] = cross_entropy(counts.probabilities(pairs))
            found.metrics[f"{name}_unigram_loss"] = cross_entropy(counts.shorter.probabilities(pairs[1:]))

        for split in data.splits:
            if split != TRAIN:
                score(split, data.evaluation_batches(split))
        for name in self.sets:
            try:
                score(name, scored_batches(data, name, self.num_texts, self.num_texts))
            except AbsentTextsError as error:
                found.unavailable |= {f"{name}_{kind}loss": lack(name, error) for kind in ("", "unigram_")}
        return found

    def counts(self, data: Tokens) -> Counts:
        """Return the counts of the training data with the best weights; UsageError: too few to hold some out."""
        if isinstance(data, ListOpsData):
            size = len(data.task.vocabulary)
        else:
            size = data.vocabulary_size or data.tokenizer.vocabulary_size
        kept, held_out = _training_triples(data)
        if not len(kept[0]) or not len(held_out[0]):
            raise UsageError(f"a count needs at least {HELD_OUT} documents or windows, there are fewer")
        return Counts.fitted(kept[-self.length :], held_out[-self.length :], size)


class TrigramFloor(BigramFloor):
    """Measures a count of the training data's triples of tokens on the batches that a trained model is evaluated on.

    Metrics, for each split but "train": ``<split>_loss``, nats per token of the trigram, interpolated with the bigram
    of ``BigramFloor``; also ``trigram_weight``.
    """

    length = 3

    def __init__(self) -> None:
        super().__init__()

    def measured(self, data: Tokens) -> Findings:
        counts = self.counts(data)
        losses = {
            f"{split}_loss": cross_entropy(counts.probabilities(counted_triples(data.evaluation_batches(split))))
            for split in data.splits
            if split != TRAIN
        }
        return Findings({"trigram_weight": counts.weights[1], **losses})


def counted_triples(batches: Iterable[Pairs]) -> Triples:
    """Return the tokens of batches (..., T) that are scored, with the two before each, (N,) each."""
    none = torch.zeros(0, dtype=torch.int64)
    found: list[Triples] = [(none, none, none)]
    for ids, following in batches:
        scored = following != IGNORED
        before = functional.pad(ids, (1, -1), value=NONE)
        found.append((before[scored], ids[scored], following[scored]))
    before, previous, following = (torch.cat(parts) for parts in zip(*found, strict=True))
    return before, previous, following


def _training_triples(data: Tokens) -> tuple[Triples, Triples]:
    """Return the tokens to count first with the two before each, and those that are held out from them."""
    if isinstance(data, DocumentData):
        texts, left = [], MOST_TOKENS
        for index in range(len(data.documents[TRAIN])):
            ids = torch.from_numpy(data.documents[TRAIN].ids(index, data.window + 1).astype("int64"))
            left -= len(ids)
            if left < 0:
                break
            texts.append((ids[:-1], ids[1:]))
        others = texts[HELD_OUT - 1 :: HELD_OUT]
        del texts[HELD_OUT - 1 :: HELD_OUT]
        return counted_triples(texts), counted_triples(others)
    tokens, window = data.streams[TRAIN], data.window
    # Whole windows, and the token that follows the last.
    length = min(MOST_TOKENS, len(tokens) - 1) // window * window + 1
    ids = torch.from_numpy(tokens[:length].astype("int64"))
    previous, following = ids[:-1].view(-1, window), ids[1:].view(-1, window)
    is_kept = torch.arange(len(previous)) % HELD_OUT != HELD_OUT - 1
    kept, held_out = (counted_triples([(previous[part], following[part])]) for part in (is_kept, ~is_kept))
    return kept, held_out


class DownstreamFloor(FloorTask, Downstream):  # type: ignore[misc]  # a task's ``measure`` is another one
    """Lets the bigram of ``BigramFloor``, counted on a cell's training data, answer the questions of ``Downstream``.

    Its arguments are those of ``Downstream``, its metrics have the names of a trained model's.
    """

    kinds = (TextData,)

    def measured(self, data: TextData) -> Findings:
        return self.of_model(BigramModel(BigramFloor().counts(data), data.window), data)


class BigramModel(nn.Module):
    """A count of token pairs as a language model: maps ids (B, T) to the logarithms of p(next | id), (B, T, V)."""

    def __init__(self, counts: Counts, block_length: int) -> None:
        super().__init__()
        self.counts, self.block_length = counts, block_length
        self.row = functools.cache(self._row)

    def forward(self, ids: Tensor) -> Tensor:
        known, places = ids.unique(return_inverse=True)  # (U,), (B, T)
        return torch.stack([self.row(int(one)) for one in known])[places]

    def _row(self, known: int) -> Tensor:
        """Return log p(next | id), (V,)."""
        following = torch.arange(self.counts.vocabulary_size)
        return self.counts.probabilities((torch.full_like(following, known), following)).log()


class ListOpsFloor(FloorTask):
    """Answers each held-out question with the most frequent answer of training questions of its outermost operation.

    Metrics, under the names of ``ListOpsAccuracy``, each over all held-out questions that the data have: the four of
    ``WAYS``, which are one number here, because no prompt is read and nothing is drawn; ``accuracy_<function>`` of
    questions of one function alone; and ``chance``, one over the modulus.
    """

    kinds = (ListOpsData,)

    def measured(self, data: ListOpsData) -> Findings:
        corpus = data.corpus
        counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for item in corpus.train:
            counts[item.tokens[0]][item.result] += 1  # an expression begins with its outermost operation
        known = {operation: min(found, key=lambda one: (-found[one], one)) for operation, found in counts.items()}

        def accuracy(items: Sequence[Item]) -> float:
            return sum(known.get(item.tokens[0]) == item.result for item in items) / len(items)

        metrics = dict.fromkeys(WAYS, accuracy(corpus.test))
        metrics |= {f"accuracy_{name}": accuracy(items) for name, items in corpus.single.items()}
        return Findings({**metrics, "chance": 1 / data.task.modulus})


# Sudoku.


def most_frequent(givens: Sequence[int]) -> list[int]:
    """Fill every blank with the digit that the givens lack most often, the smallest of several such."""
    digit = min(range(1, 10), key=lambda one: (givens.count(one), one))
    return [given or digit for given in givens]


def only_candidates(givens: Sequence[int]) -> list[int]:
    """Fill each blank whose row, column and box leave one digit, again and again; then the others as above."""
    return most_frequent(list(propagated(givens)))


BOARD_RULES = {"most_frequent": most_frequent, "only_candidates": only_candidates}


class SudokuFloor(FloorTask):
    """Fills boards by a rule; metrics as of ``SudokuAccuracy``, but for those of more steps and samples.

    Args:
        rule: "most_frequent", the digit that the givens lack most often in every blank, or "only_candidates", which
            first fills blanks that have one digit left until there are none.
    """

    kinds = (SudokuData,)

    def __init__(self, rule: str = "most_frequent") -> None:
        self.rule = BOARD_RULES[one_of("rule", rule, BOARD_RULES)]

    def measured(self, data: SudokuData) -> Findings:
        def filled(givens: Tensor) -> Tensor:
            return torch.tensor([self.rule(board) for board in givens.tolist()], dtype=givens.dtype).view(-1, CELLS)

        return Findings(both_splits(data, filled))


# Regression.

Predict = Callable[[Tensor], Tensor]
"""Targets (N,) of inputs (N, K); or the frames that follow each of some frames, (B, T, V) both."""


def mean_target(inputs: Tensor, targets: Tensor) -> Predict:
    """Return the mean of the training targets (N,) everywhere."""
    center = targets.mean()
    return lambda others: center.expand(len(others))


def linear_target(inputs: Tensor, targets: Tensor) -> Predict:
    """Fit the targets (N,) by least squares to the inputs (N, K) and a constant."""
    weights = torch.linalg.lstsq(_with_one(inputs), targets[:, None]).solution[:, 0]  # (K + 1,)
    return lambda others: _with_one(others) @ weights


TARGET_RULES: dict[str, Callable[[Tensor, Tensor], Predict]] = {"mean": mean_target, "linear": linear_target}


class RegressionFloor(FloorTask):
    """Measures ``<split>_rmse`` of a rule, in the units of the targets; all training points are fitted, in float64.

    Args:
        rule: "mean" or "linear".
    """

    kinds = (CounterBasedDataModule,)

    def __init__(self, rule: str = "mean") -> None:
        self.rule = TARGET_RULES[one_of("rule", rule, TARGET_RULES)]

    def measured(self, data: CounterBasedDataModule) -> Findings:
        batch = data.example_batch()
        if not isinstance(batch, tuple) or [getattr(part, "ndim", 0) for part in batch] != [2, 1]:
            raise UsageError(f"RegressionFloor takes inputs and targets, the data are {type(data).__name__}")
        points = {}  # inputs (N, K) and targets (N,) of each split
        for split in data.splits:
            parts = zip(*data.evaluation_batches(split), strict=True)
            points[split] = tuple(torch.cat(part).double() for part in parts)
        predict = self.rule(*points["train"])
        errors = {split: predict(inputs) - targets for split, (inputs, targets) in points.items()}
        return Findings({f"{split}_rmse": float(error.square().mean().sqrt()) for split, error in errors.items()})


def _with_one(inputs: Tensor) -> Tensor:
    """Return inputs (..., K) with a one behind each, (..., K + 1)."""
    return torch.cat([inputs, torch.ones_like(inputs[..., :1])], -1)


# Video.

NUM_BATCHES = 64
"""Training batches that a linear map of frames is fitted to."""


def last_frame(data: VideoData) -> Predict:
    """Return the last frame as the next one."""
    return lambda frames: frames


def linear_frame(data: VideoData) -> Predict:
    """Fit the next frame by least squares to the last two (the first one twice) and a constant, on training windows."""
    gram: Tensor = torch.zeros(())
    right: Tensor = torch.zeros(())
    for step in range(NUM_BATCHES):
        batch = data.train_batch(step).double()  # (B, T, V)
        known = _two_frames(batch[:, :-1]).flatten(0, 1)  # (B T, 2 V + 1)
        gram, right = gram + known.T @ known, right + known.T @ batch[:, 1:].flatten(0, 1)
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights = torch.linalg.solve(gram + ridge, right)  # (2 V + 1, V)
    return lambda frames: (_two_frames(frames.double()) @ weights).to(frames.dtype)


def _two_frames(frames: Tensor) -> Tensor:
    """Return each frame, the one before it and a one, (B, T, 2 V + 1), of frames (B, T, V)."""
    return _with_one(torch.cat([frames, torch.cat([frames[:, :1], frames[:, :-1]], 1)], -1))


FRAME_RULES: dict[str, Callable[[VideoData], Predict]] = {"last_frame": last_frame, "linear": linear_frame}


class VideoFloor(FloorTask):
    """Measures ``<split>_loss`` of a rule, Smooth L1 of the frames that follow.

    Args:
        rule: "last_frame" or "linear".
    """

    kinds = (VideoData,)

    def __init__(self, rule: str = "last_frame") -> None:
        self.rule = one_of("rule", rule, FRAME_RULES)

    def measured(self, data: VideoData) -> Findings:
        predict = FRAME_RULES[self.rule](data)
        found = Findings()
        for split in data.splits:
            loss = Mean()
            for batch in data.evaluation_batches(split):
                loss.update(functional.smooth_l1_loss(predict(batch[:, :-1]), batch[:, 1:]), len(batch))
            found.metrics[f"{split}_loss"] = float(loss.compute())
        return found
