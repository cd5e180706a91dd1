import functools

import pytest
import torch
from torch import nn

from paper_repro.base.errors import UsageError
from paper_repro.lightning_modules.cem_gaussian_process import CEMGaussianProcess
from paper_repro.models.cem import CEMMLP, GatedMLP, GaussianProcessRegressor, PlainMLP
from paper_repro.tests.training.doubles import Small, TwoGroups, Waves, by_hand
from paper_repro.training.ensemble import Ensemble
from paper_repro.training.schedules import Constant, Cosine


def adamw(**changes):
    return functools.partial(torch.optim.AdamW, **{"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1, **changes})


def module_of(seed, model=Small, optimizer=None, schedule=None, kind=CEMGaussianProcess):
    torch.manual_seed(seed)
    return kind(model(), optimizer or adamw(), schedule or Cosine())


def build(count=3, steps=20, modules=None, **options):
    modules = modules or [module_of(seed) for seed in range(count)]
    data = [Waves(seed) for seed in range(len(modules))]
    return Ensemble(modules, data, steps, clip_norm=options.pop("clip_norm", 1.0), **options)


@pytest.mark.parametrize(
    ("make", "model"),
    [
        (adamw(), Small),
        (adamw(amsgrad=True), Small),
        (functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True), Small),
        (functools.partial(torch.optim.Adafactor, lr=0.01), Small),
        (adamw(), lambda: GaussianProcessRegressor(PlainMLP(64, 64))),
        (adamw(), lambda: GaussianProcessRegressor(GatedMLP(64, 64))),
        (adamw(), lambda: GaussianProcessRegressor(CEMMLP(64, 64, num_steps=4))),
        (adamw(), lambda: GaussianProcessRegressor(CEMMLP(64, 64, 2, preconditioner="diagonal_low_rank"))),
    ],
)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_every_optimiser_does_to_the_stack_what_it_does_to_each_model(make, model, clip_norm):
    def modules():
        schedules = [Cosine(), Constant(0.5), Cosine(final_factor=0.5)]
        return [
            module_of(
                seed,
                model,
                optimizer=functools.partial(make, lr=make.keywords["lr"] * (1 + seed)),
                schedule=schedules[seed],
                kind=TwoGroups if make.func is torch.optim.AdamW else CEMGaussianProcess,
            )
            for seed in range(3)
        ]

    together, alone = modules(), modules()
    ensemble = build(modules=together, clip_norm=clip_norm, precision="64-true")
    for _ in range(20):
        ensemble.advance()
    ensemble.unstack()
    for seed, module in enumerate(alone):
        by_hand(module.double(), Waves(seed), 20, clip_norm=clip_norm)
        for (name, expected), found in zip(module.named_parameters(), together[seed].parameters(), strict=True):
            # float64 throughout; only the order of sums differs, over 20 steps.
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, msg=name)


def test_frozen_parameters_and_buffers_stay_each_models_own():
    modules = [module_of(seed) for seed in range(2)]
    for module in modules:
        module.model.first.weight.requires_grad_(False)
    before = [{name: tensor.clone() for name, tensor in module.state_dict().items()} for module in modules]
    ensemble = build(modules=modules)
    for _ in range(5):
        ensemble.advance()
    ensemble.unstack()
    for module, old in zip(modules, before, strict=True):
        kept = {"model.first.weight", "model.shift"}
        assert {name for name, tensor in module.state_dict().items() if torch.equal(tensor, old[name])} == kept


def test_evaluate_measures_every_row_of_every_split_and_leaves_the_mode():
    module, data = module_of(0, model=functools.partial(Small, dropout=0.5)), Waves(0)
    found = module.evaluate(data)
    assert module.training
    module.eval()
    for split, rows in (("train", slice(0, 48)), ("test", slice(48, None))):
        # Batches of 20 rows and one batch of all round differently.
        errors = module.model(data.inputs[rows]) - data.targets[rows]
        assert found.pop(f"{split}_rmse") == pytest.approx(float(errors.detach().square().mean().sqrt()), rel=1e-5)
    assert found == {}


class Idle(Small):
    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(3))


class Noisy(Small):
    def forward(self, x):
        return super().forward(x) + torch.randn(len(x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Noisy, r"random operation.*machine\.stack=null"),
        (Idle, r"does not depend on model\.idle"),
    ],
)
def test_losses_that_cannot_be_stacked_are_refused(model, message):
    ensemble = build(modules=[module_of(seed, model=model) for seed in range(2)])
    with pytest.raises(UsageError, match=message):
        ensemble.advance()


def test_optimisers_of_two_classes_are_refused():
    with pytest.raises(UsageError, match="one optimiser class"):
        build(modules=[module_of(0), module_of(1, optimizer=functools.partial(torch.optim.SGD, lr=0.1))])
