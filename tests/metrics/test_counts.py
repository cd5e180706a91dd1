import numpy as np
import torch
from torch import Tensor

from paper_repro.metrics.counts import Counts, cross_entropy

SIZE = 7


def text(length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairs of neighbours; the even tokens are often followed by the next number."""
    draw = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length):
        follows = ids[-1] % 2 == 0 and draw.random() < 0.7
        ids.append((ids[-1] + 1) % 6 if follows else int(draw.integers(6)))
    return torch.tensor(ids[:-1]), torch.tensor(ids[1:])


def test_the_weight_is_the_best_of_a_fine_grid_on_the_held_out_pairs() -> None:
    kept, held_out = text(60, 0), text(500, 1)
    (weight,) = Counts.fitted(kept, held_out, SIZE).weights
    losses = [cross_entropy(Counts(kept, SIZE, [one]).probabilities(held_out)) for one in np.linspace(0, 0.999, 400)]
    own = cross_entropy(Counts(kept, SIZE, [weight]).probabilities(held_out))
    assert 0.1 < weight < 0.9 and own <= min(losses) + 1e-12
    independent = torch.from_numpy(np.random.default_rng(2).integers(0, 6, (2, 500)))
    assert Counts.fitted([*independent[:, :60]], [*independent[:, 60:]], SIZE).weights[0] < 0.2
