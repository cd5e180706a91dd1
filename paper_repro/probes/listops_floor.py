"""ListOps without learning: the answer that an outermost operation has most often; a task that trains nothing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from paper_repro.cells.tasks import FINISHED, Cell, Outcome, Report
from paper_repro.datamodules.listops import Item, ListOpsData
from paper_repro.probes.floor_task import FloorTask
from paper_repro.probes.listops_accuracy import WAYS

Answers = dict[int, int]
"""The most frequent answer of training questions, by the token of their outermost operation."""


class ListOpsFloor(FloorTask):
    """Answers each held-out question with the most frequent answer of training questions of its outermost operation.

    Metrics, under the names of a trained model's (``ListOpsAccuracy``), each over all held-out questions that the data
    have: the four of ``WAYS``, which are one number here, for no prompt is read and nothing is drawn;
    ``accuracy_<function>`` of questions of one function alone; and ``chance``, one over the modulus.
    """

    kinds = (ListOpsData,)
    takes = "answers ListOps questions"

    def run(self, cells: Sequence[Cell], folder: Path, report: Report) -> list[Outcome]:
        return [self._outcome(self.data_of(cell.config)) for cell in cells]

    def _outcome(self, data: ListOpsData) -> Outcome:
        corpus = data.corpus
        known = most_frequent(corpus.train)
        metrics = dict.fromkeys(WAYS, accuracy(known, corpus.test))
        metrics |= {f"accuracy_{name}": accuracy(known, items) for name, items in corpus.single.items()}
        metrics["chance"] = 1 / data.task.modulus
        return Outcome(FINISHED, metrics=metrics, data_hashes=data.data_hashes())


def most_frequent(items: Iterable[Item]) -> Answers:
    """Count the answers by the outermost operation, the first token of an expression; of several the smallest."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for item in items:
        counts[item.tokens[0]][item.result] += 1
    return {operation: min(found, key=lambda answer: (-found[answer], answer)) for operation, found in counts.items()}


def accuracy(known: Answers, items: Sequence[Item]) -> float:
    """Return the share of items whose answer is the known one; an operation that was never seen is never right."""
    return sum(known.get(item.tokens[0]) == item.result for item in items) / len(items)
