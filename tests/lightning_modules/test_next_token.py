from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from paper_repro.base.configs import compose, instantiate
from paper_repro.base.identity import IGNORED
from paper_repro.lightning_modules.cem_slimpajama import CEMSlimPajama
from paper_repro.lightning_modules.next_token import NextTokenModule
from paper_repro.lightning_modules.nrgpt_listops import NRGPTListOps
from paper_repro.lightning_modules.nrgpt_owt import NRGPTOpenWebText
from paper_repro.lightning_modules.nrgpt_shakespeare import NRGPTShakespeare
from paper_repro.models.gpt import GPT
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.models.nrgpt import NRGPT_H_FF1, NRGPT_H_FF2W
from paper_repro.training.schedules import Constant

DECAY = 0.5


def module_of(model: nn.Module, kind: type[NextTokenModule] = NRGPTShakespeare, lr: float = 0.1) -> NextTokenModule:
    return kind(model, partial(torch.optim.AdamW, lr=lr, weight_decay=DECAY), Constant())


def models() -> list[nn.Module]:
    sizes: dict[str, Any] = {"vocabulary_size": 7, "block_length": 5, "width": 8, "num_heads": 2}
    return [
        GPT(**sizes, num_layers=2),
        NRGPT_H_FF1(**sizes, num_steps=2, inference_rate="positive_scalar", learn_head_weights=True),
        NRGPT_H_FF2W(**sizes, num_steps=2, norm="layer_norm"),
    ]


@pytest.mark.parametrize("kind", [NRGPTShakespeare, NRGPTOpenWebText, NRGPTListOps])
@pytest.mark.parametrize("model", models(), ids=lambda model: type(model).__name__)
def test_matrices_decay_and_nothing_else_but_on_listops_all_that_is_trained(kind, model):
    module = module_of(model, kind)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    module.optimizer(module.parameter_groups()).step()
    found = {name: float(parameter.detach().mean()) for name, parameter in model.named_parameters()}
    decayed = {name: factor for name, factor in found.items() if factor != 1}
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained.keys() == found.keys() - ({"norm.weight"} if isinstance(model, NRGPT_H_FF1) else set())
    expected = {name for name, parameter in trained.items() if parameter.ndim >= 2 or kind is NRGPTListOps}
    assert decayed == dict.fromkeys(expected, pytest.approx(1 - 0.1 * DECAY))


@pytest.mark.parametrize("kind", [NRGPTShakespeare, CEMSlimPajama])
@torch.no_grad()
def test_padding_enters_neither_the_loss_nor_the_metrics(kind: type[NextTokenModule]) -> None:
    torch.manual_seed(0)
    module = module_of(Llama(64, 6, 8, 2, 1, 8, rotary_attention, gated_feed_forward), kind)
    ids, whole = torch.randint(64, (2, 2, 6))
    following = torch.where(torch.arange(6) < torch.tensor([[2], [5]]), whole, IGNORED)
    expected = -module.model(ids).log_softmax(-1).gather(-1, whole[..., None])[..., 0][following != IGNORED].mean()
    metrics = module.new_metrics()
    module.update_metrics(metrics, (ids, following))
    assert float(metrics["loss"].compute()) == pytest.approx(float(expected), rel=1e-6)
    assert float(module.loss((ids, following))) == pytest.approx(float(expected), rel=1e-6)
    assert float(module.loss((ids, torch.full_like(following, IGNORED)))) == 0


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
