from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paper_repro.models.llama import Llama, gated_feed_forward, rotary_attention

IDS = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(0))


def _tiny(attention: Any = rotary_attention, feed_forward: Any = gated_feed_forward) -> Llama:
    torch.manual_seed(0)
    return Llama(11, 8, 12, 2, 2, 20, attention, feed_forward).double()


def _attended(x: Tensor, weight: Tensor, output: Tensor) -> Tensor:
    """Causal attention of two heads of 6 with textbook rotations, written out."""
    query, key, value = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in (x @ weight.T).chunk(3, -1))
    angle = torch.arange(7.0, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0.0, 6, 2).double() / 6)

    def turned(part: Tensor) -> Tensor:
        pairs = torch.view_as_complex(part.unflatten(-1, (3, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    scores = turned(query) @ turned(key).mT / 6**0.5
    weights = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2) @ output


def test_a_llama_is_what_its_equations_say() -> None:
    model = _tiny()
    x = model.token_embedding.weight[IDS]
    for block in model.blocks:
        for part in (block.attention, block.feed_forward):
            seen = functional.rms_norm(x, (12,), part.norm.weight, 1e-6)
            if part is block.attention:
                x = x + _attended(seen, part.branch.query_key_value.weight, part.branch.output.weight)
            else:
                u, gate = (seen @ part.branch.up.weight.T).chunk(2, -1)
                x = x + (u * functional.silu(gate)) @ part.branch.down.weight
    logits = functional.rms_norm(x, (12,), model.final_norm.weight, 1e-6) @ model.output.weight.T
    torch.testing.assert_close(model(IDS), logits, rtol=1e-6, atol=1e-6)  # the rotary tables are float32


def test_reuse_is_the_same_part_again_with_no_parameter_more() -> None:
    once, twice = _tiny(), _tiny(partial(rotary_attention, num_passes=2), partial(gated_feed_forward, num_passes=2))
    twice.load_state_dict(once.state_dict())
    assert not torch.allclose(once(IDS), twice(IDS))
    part = once.blocks[0].feed_forward
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(twice.blocks[0].feed_forward(x), part(part(x)), rtol=1e-12, atol=1e-12)
