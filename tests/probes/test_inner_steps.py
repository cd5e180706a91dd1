import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.base.identity import IGNORED
from paper_repro.lightning_modules.cem_slimpajama import CEMSlimPajama
from paper_repro.models.cem import CEMMLP, CEMAttention
from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention
from paper_repro.probes.inner_steps import InnerSteps
from paper_repro.training.schedules import Constant

ATTENTION = partial(CEMAttention, num_steps=2, init_std=0.5)
FEED_FORWARD = partial(CEMMLP, num_steps=2, norm_context=True, norm_inside=True, init_std=0.5)


class Windows:
    """Five batches of validation."""

    def evaluation_batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        assert split == "val"
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            ids = torch.randint(11, (2, 8), generator=generator)
            yield ids[:, :-1], ids[:, 1:]


def _module(attention: object, feed_forward: object) -> CEMSlimPajama:
    torch.manual_seed(0)
    model = Llama(11, 8, 12, 2, 2, 20, attention, feed_forward)  # type: ignore[arg-type]
    return CEMSlimPajama(model, partial(torch.optim.AdamW), Constant()).eval()


@torch.no_grad()
def _measured(module: CEMSlimPajama, probe: InnerSteps) -> dict[str, float]:
    return probe.measure(module, Windows(), 0).metrics  # type: ignore[arg-type]


def test_perplexities_and_energies_are_those_of_a_model_with_that_many_steps() -> None:
    module = _module(ATTENTION, FEED_FORWARD)
    found = _measured(module, InnerSteps((1, 3), num_batches=2))
    for number in (1, 3):
        other = _module(partial(ATTENTION.func, num_steps=number), partial(FEED_FORWARD, num_steps=number)).model
        other.load_state_dict(module.model.state_dict())
        losses, energies = [], []
        for (ids, following), _ in zip(Windows().evaluation_batches("val"), range(2), strict=False):
            with torch.no_grad():
                losses.append(functional.cross_entropy(other(ids).flatten(0, 1), following.flatten()))
                stream = other.embed(ids)
                for block in other.blocks:
                    trace = block.attention.trace(stream)
                    energies.append(trace.energies[-1].mean())
                    stream = block.feed_forward(trace.states[-1])
        perplexity = math.exp(float(torch.stack(losses).mean()))
        assert found[f"perplexity_T{number}"] == pytest.approx(perplexity, rel=1e-5)
        assert found[f"energy_attention_T{number}"] == pytest.approx(float(torch.stack(energies).mean()), rel=1e-4)
    assert len({round(value, 6) for value in found.values()}) == len(found) == 6


def test_it_leaves_the_model_as_it_was_and_counts_parts_that_descend_only() -> None:
    module = _module(rotary_attention, FEED_FORWARD)
    found = _measured(module, InnerSteps((4,), num_batches=9))
    assert set(found) == {"perplexity_T4", "energy_feed_forward_T4"}
    assert [part.num_steps for part in module.model.descents()] == [2, 2]
    assert not any(part._forward_hooks for part in module.model.descents())
    assert _measured(_module(rotary_attention, gated_feed_forward), InnerSteps()) == {}


def test_padding_enters_neither_perplexity_nor_energies(monkeypatch: pytest.MonkeyPatch) -> None:
    module, probe = _module(ATTENTION, FEED_FORWARD), InnerSteps((2,), num_batches=2)
    whole = list(Windows().evaluation_batches("val"))
    monkeypatch.setattr(Windows, "evaluation_batches", lambda *_: iter([(i[:, :4], f[:, :4]) for i, f in whole]))
    expected = _measured(module, probe)
    padded = [(ids, torch.where(torch.arange(7) < 4, following, IGNORED)) for ids, following in whole]
    monkeypatch.setattr(Windows, "evaluation_batches", lambda *_: iter(padded))
    assert _measured(module, probe) == pytest.approx(expected, rel=1e-5)
