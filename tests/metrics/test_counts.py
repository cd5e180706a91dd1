import math

import numpy as np
import pytest
import torch
from torch import Tensor

from paper_repro.metrics import counts
from paper_repro.metrics.counts import BigramCounts, cross_entropy

SIZE = 7


def text(length: int, seed: int) -> Tensor:
    """Tokens of which the even ones are often followed by the next number."""
    draw = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length):
        follows = ids[-1] % 2 == 0 and draw.random() < 0.7
        ids.append((ids[-1] + 1) % 6 if follows else int(draw.integers(6)))
    return torch.tensor(ids)


def counted(length: int = 400, seed: int = 0) -> tuple[BigramCounts, Tensor]:
    ids = text(length, seed)
    return BigramCounts.of(ids[:-1], ids[1:], SIZE), ids


def test_probabilities_are_those_of_a_count_by_hand() -> None:
    ids = torch.tensor([0, 1, 0, 2, 0, 1])
    counts = BigramCounts.of(ids[:-1], ids[1:], 4)
    following, previous = torch.tensor([1, 2, 3, 0]), torch.tensor([0, 0, 0, 3])
    unigram = [(2 + 1) / 9, (1 + 1) / 9, 1 / 9, (2 + 1) / 9]
    assert counts.unigram(following).tolist() == pytest.approx(unigram)
    assert counts.relative(previous, following).tolist() == pytest.approx([2 / 3, 1 / 3, 0, unigram[3]])
    mixed = [
        0.75 * relative + 0.25 * single for relative, single in zip([2 / 3, 1 / 3, 0, 1 / 3], unigram, strict=True)
    ]
    assert counts.bigram(previous, following, 0.75).tolist() == pytest.approx(mixed)
    assert cross_entropy(torch.tensor([0.5, 0.25], dtype=torch.float64)) == pytest.approx(1.5 * math.log(2))


def test_a_vocabulary_too_large_for_a_table_is_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    (dense, ids), size = counted(), counts.DENSE
    assert size >= SIZE**2
    monkeypatch.setattr(counts, "DENSE", SIZE**2 - 1)
    sparse = BigramCounts.of(ids[:-1], ids[1:], SIZE)
    assert len(dense.pairs) < SIZE**2 and torch.equal(dense.pairs, sparse.pairs)
    assert torch.equal(dense.pair_counts, sparse.pair_counts) and dense.pair_counts.sum() == len(ids) - 1


def test_the_weight_is_the_best_of_a_fine_grid_on_the_held_out_pairs() -> None:
    counts, _ = counted(60)
    held_out = text(500, 1)
    pairs = held_out[:-1], held_out[1:]
    weight = counts.best_weight(*pairs)
    losses = {other: cross_entropy(counts.bigram(*pairs, other)) for other in np.linspace(0, 0.999, 400)}
    assert 0.1 < weight < 0.9 and cross_entropy(counts.bigram(*pairs, weight)) <= min(losses.values()) + 1e-12
    independent = torch.from_numpy(np.random.default_rng(2).integers(0, 6, (2, 500)))
    assert BigramCounts.of(*independent[:, :60], SIZE).best_weight(*independent[:, 60:]) < 0.2
