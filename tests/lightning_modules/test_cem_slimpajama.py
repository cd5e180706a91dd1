from functools import partial

import torch

from paper_repro.base.configs import compose, instantiate
from paper_repro.lightning_modules.cem_slimpajama import CEMSlimPajama
from paper_repro.training.schedules import Constant

SIZES = ["model.vocabulary_size=13", "data.window=8", "model.width=12", "model.num_heads=2", "model.num_layers=1"]
EXTRAS = ["model.hidden=20", "attention=cem", "model.attention.diagonal=per_head", "feed_forward=cem"]


def _module(*overrides: str) -> CEMSlimPajama:
    torch.manual_seed(0)
    model = instantiate(compose("cem/slimpajama", [*SIZES, *overrides])["model"])
    return CEMSlimPajama(model, partial(torch.optim.AdamW), Constant())


def test_matrices_decay_and_norms_biases_and_diagonals_do_not() -> None:
    low_rank = [
        f"model.{part}.{key}"
        for part in ("attention", "feed_forward")
        for key in ("preconditioner=diagonal_low_rank", "rank=2")
    ]
    module = _module(*EXTRAS, *low_rank)
    names = {id(parameter): name.removeprefix("model.") for name, parameter in module.named_parameters()}
    decaying, others = ({names[id(p)] for p in group["params"]} for group in module.parameter_groups())
    attention, mlp = "blocks.0.attention.", "blocks.0.feed_forward."
    assert others == {
        "final_norm.weight",
        *(attention + name for name in ("norm_weight", "diagonal", "bias_self", "bias_cross")),
        *(part + name for part in (attention, mlp) for name in ("preconditioner.diagonal",)),
        mlp + "norm_weight",
    }
    assert decaying | others == set(names.values())
    assert module.parameter_groups()[1]["weight_decay"] == 0.0
    assert {attention + "preconditioner.left", mlp + "preconditioner.right", "output.weight"} <= decaying
