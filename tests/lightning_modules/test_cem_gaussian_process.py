import functools

import pytest
import torch

from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.models.cem import CEMMLP, GatedMLP, GaussianProcessRegressor, PlainMLP
from paper_repro.tests.training.doubles import by_hand
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.schedules import Cosine


def module_of(model):
    return CEMGaussianProcess(model, functools.partial(torch.optim.AdamW, lr=0.005), Cosine())


class Fixed:
    """The same batch at every step, another for each seed."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.batch = torch.rand(16, 10, generator=generator), torch.rand(16, generator=generator)

    def train_batch(self, step):
        return self.batch


@pytest.mark.parametrize(
    "block",
    [
        lambda: PlainMLP(64, 64),
        lambda: GatedMLP(64, 64),
        lambda: CEMMLP(64, 64, num_steps=1),
        lambda: CEMMLP(64, 64, num_steps=4),
        lambda: CEMMLP(64, 64, num_steps=2, preconditioner="diagonal_low_rank"),
    ],
)
def test_every_model_of_table_3_trains_the_same_in_a_stack_and_alone(block):
    modules, copies = ([], [])
    for seed in range(3):
        for group in (modules, copies):
            torch.manual_seed(seed)
            group.append(module_of(GaussianProcessRegressor(block())))
    data = [Fixed(seed) for seed in range(3)]
    ensemble = Ensemble(modules, data, steps=5, clip_norm=1.0, precision="64-true")
    for _ in range(5):
        ensemble.advance()
    ensemble.unstack()
    for own, copy, stacked in zip(data, copies, modules, strict=True):
        by_hand(copy.double(), own, steps=5, clip_norm=1.0)
        for (name, expected), found in zip(copy.named_parameters(), stacked.parameters(), strict=True):
            # float64: only the order of sums differs, over 5 steps.
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=name)
