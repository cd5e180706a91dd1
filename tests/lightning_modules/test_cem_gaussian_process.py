import functools

import pytest
import torch

from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.models.cem import CEMMLP, GatedMLP, GaussianProcessRegressor, PlainMLP
from paper_repro.tests.training.doubles import Waves, by_hand
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.schedules import Cosine


@pytest.mark.parametrize(
    "block",
    [
        lambda: PlainMLP(64, 64),
        lambda: GatedMLP(64, 64),
        lambda: CEMMLP(64, 64, num_steps=4),
        lambda: CEMMLP(64, 64, num_steps=2, preconditioner="diagonal_low_rank"),
    ],
)
def test_every_model_of_table_3_trains_the_same_in_a_stack_and_alone(block):
    def module_of(seed):
        torch.manual_seed(seed)
        optimizer = functools.partial(torch.optim.AdamW, lr=0.005)
        return CEMGaussianProcess(GaussianProcessRegressor(block()), optimizer, Cosine())

    modules, copies = ([module_of(seed) for seed in range(3)] for _ in range(2))
    ensemble = Ensemble(modules, [Waves(seed) for seed in range(3)], steps=5, clip_norm=1.0, precision="64-true")
    for _ in range(5):
        ensemble.advance()
    ensemble.unstack()
    for seed, (copy, stacked) in enumerate(zip(copies, modules, strict=True)):
        by_hand(copy.double(), Waves(seed), steps=5, clip_norm=1.0)
        for (name, expected), found in zip(copy.named_parameters(), stacked.parameters(), strict=True):
            # float64: only the order of sums differs, over 5 steps.
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=name)
