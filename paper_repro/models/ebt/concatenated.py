"""Both of EBT's streams through the trunk as one sequence, in the form of its appendix C.6: the definition.

Its attention replaces the superdiagonal of a matrix of scores, as the paper describes it.  ``Trunk.observe`` and
``Trunk.predict`` compute the same with less work.

Legend: B sequences, T predictions of each, R = lead + T observed rows, D width, H heads, Y = D/H.
"""

import math

import torch
from torch import Tensor

from paper_repro.kernels.causal_attention import causal_attention
from paper_repro.kernels.qk_rotary import RotaryTables
from paper_repro.models.ebt.trunk import Trunk


def concatenated_states(
    trunk: Trunk, observed: Tensor, predicted: Tensor, lead: int, condition: Tensor | None
) -> Tensor:
    """Return the final states, normalised, of the predictions, (B, T, D).

    Args:
        trunk: its weights serve both streams.
        observed: (B, R, D), first the rows that precede the tokens.
        predicted: (B, T, D); row i is a candidate for the token after observed row lead + i.
        lead: R - T.
        condition: what modulates the trunk, (1, D), or None.
    """
    rows, count = observed.shape[1], predicted.shape[1]
    before, after = trunk.tables(0, rows), trunk.tables(1 + lead, count)
    tables = RotaryTables(*(torch.cat(pair) for pair in zip(before, after, strict=True)))  # (R + T, Y/2) each
    x = torch.cat([observed, predicted], 1)  # (B, R + T, D)
    for block in trunk.layers():
        first, second = block.modulations(condition)
        query, key, value = block.attention.projected(block.read(x, first), tables)  # (B, H, R + T, Y) each
        keys, values = key[:, :, :rows], value[:, :, :rows]  # (B, H, R, Y) each
        own = superdiagonal_attention(query[:, :, rows:], key[:, :, rows:], value[:, :, rows:], keys, values, lead)
        attended = torch.cat([causal_attention(query[:, :, :rows], keys, values), own], 2)  # (B, H, R + T, Y)
        x = block.fed(block.added(x, block.attention.written(attended), first), second)
    return trunk.final(x[:, rows:], condition)


def superdiagonal_attention(
    query: Tensor, own_key: Tensor, own_value: Tensor, keys: Tensor, values: Tensor, lead: int
) -> Tensor:
    """Let prediction i attend to the observed rows 0 ... lead + i and to itself (equations 5 to 8), (B, H, T, Y).

    The matrix of scores gets a column, so that its diagonal number lead + 1 has T entries.  These are replaced by the
    predictions' scores with themselves; after the softmax they weight the predictions' own values.

    Args:
        query, own_key, own_value: of the predictions, (B, H, T, Y).
        keys, values: of the observed rows, (B, H, R, Y).
        lead: R - T.
    """
    count, columns = query.shape[2], keys.shape[2] + 1
    scores = torch.nn.functional.pad(query @ keys.mT, (0, 1))  # (B, H, T, R + 1)
    places = torch.arange(columns, device=query.device) - torch.arange(count, device=query.device)[:, None] - lead
    diagonal = places == 1  # (T, R + 1)
    own = (query * own_key).sum(-1, keepdim=True)  # (B, H, T, 1)
    scores = torch.where(diagonal, own, scores) / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores.masked_fill(places > 1, -math.inf), -1)  # (B, H, T, R + 1)
    on_own = (weights * diagonal).sum(-1, keepdim=True)  # (B, H, T, 1)
    on_observed = weights.masked_fill(diagonal, 0.0)[..., :-1]  # (B, H, T, R)
    return on_observed @ values + on_own * own_value  # (B, H, T, Y)
