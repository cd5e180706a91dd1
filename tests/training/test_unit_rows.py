"""Rows of unit norm after every optimiser step: alone, through Lightning and stacked."""

import functools

import lightning as L
import pytest
import torch
from torch import nn

from paper_repro.models.common import project_rows_
from paper_repro.tests.training.doubles import Small, UnitRows, Waves, by_hand
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.optim import UnitAdamW, keep_unit_rows
from paper_repro.training.schedules import Cosine

ADAM = {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1}
OPTIMIZERS = {
    "AdamW": functools.partial(torch.optim.AdamW, **ADAM),
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adafactor": functools.partial(torch.optim.Adafactor, lr=0.05),
    "UnitAdamW": functools.partial(UnitAdamW, **ADAM),
}
UNIT = 4 * torch.finfo(torch.float32).eps
"""How far from 1 the norm of a row may be: its numbers are rounded once."""


def module_of(seed=0, name="AdamW", dtype=torch.float32, **changes):
    torch.manual_seed(seed)
    return UnitRows(Small().to(dtype), functools.partial(OPTIMIZERS[name], **changes), Cosine())


def projected(name, steps, batches=1, seed=0, dtype=torch.float32, **changes):
    """The weights after the plain loop with the stock optimiser and a projection."""
    module = module_of(seed, "AdamW" if name == "UnitAdamW" else name, dtype, **changes)

    @torch.no_grad()
    def project():
        for matrix in (module.model.first.weight, module.model.last.weight):
            matrix.div_(matrix.square().sum(-1, keepdim=True).sqrt())

    by_hand(module, Waves(seed), steps, batches, after_step=project)
    return weights(module)


def weights(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_same(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def are_unit(tensors):
    matrices = [tensor for tensor in tensors.values() if tensor.ndim > 1]
    return all(float((tensor.norm(dim=-1) - 1).abs().max()) <= UNIT for tensor in matrices)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_lightning_projects_after_every_optimiser_step_and_never_between(name, tmp_path, monkeypatch):
    projections = []
    monkeypatch.setattr(
        "paper_repro.training.optim.project_rows_", lambda matrix: projections.append(project_rows_(matrix))
    )
    module = module_of(0, name)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": -1}
    rest = {"accelerator": "cpu", "devices": 1, "enable_checkpointing": False, "use_distributed_sampler": False}
    trainer = L.Trainer(default_root_dir=tmp_path, max_steps=4, accumulate_grad_batches=2, **quiet, **rest)
    trainer.fit(module, datamodule=Waves(0))
    assert len(projections) == 4 * 2
    assert are_unit(weights(module))
    # Four steps in float32, gradients summed in another order.
    assert_same(weights(module), projected(name, 4, 2), 1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_models_keep_unit_rows_each(name):
    modules = [module_of(seed, name, lr=0.02 * (1 + seed % 2)) for seed in range(3)]
    ensemble = Ensemble(modules, [Waves(seed) for seed in range(3)], 5, precision="64-true")
    for _ in range(5):
        ensemble.advance()
        for matrices in (one for one in ensemble.state_dict()["tensors"].values() if one.ndim == 3):
            norms = torch.linalg.vector_norm(matrices, dim=-1)
            torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-14, atol=0)
    ensemble.unstack()
    for seed, module in enumerate(modules):
        expected = projected(name, 5, seed=seed, dtype=torch.float64, lr=0.02 * (1 + seed % 2))
        assert_same(weights(module), expected, 1e-10)


def test_a_vector_in_a_group_with_unit_rows_is_refused():
    with pytest.raises(ValueError, match=r"matrices, found a parameter \(3,\)"):
        keep_unit_rows(torch.optim.SGD([{"params": [nn.Parameter(torch.ones(3))], "unit_rows": True}], lr=0.1))
