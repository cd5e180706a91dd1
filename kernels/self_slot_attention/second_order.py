"""Attention with a gradient and a gradient of that which are written by hand; the own column is one more, or absent.

With s_ij = c q_i . k_j, p = softmax_j(s), G and g the gradients of o and lse, D_i = G_i . o_i - g_i, dp_ij = G_i . v_j,

    ds = p (dp - D),   dq = c ds k,   dk = c ds^T q,   dv = p^T G

Let a, b, d be the cotangents of dq, dk, dv, and t_ij = c (a_i . k_j + q_i . b_j), w_ij = G_i . d_j, T_i = sum_j p t,
u = t - T, R_i = sum_j (ds u + p w), r = ds u + p (w - R).  The derivatives of dq . a + dk . b + dv . d are

    by G: (p u) v + p d    by g: T    by v: (p u)^T G    by q: c (r k + ds b)    by k: c (r^T q + ds^T a)

Sums over j include one's own column.  Its numbers, one for each row, are made here; ``Passes`` go over the observed
ones, j <= i + lead.

Legend: B sequences, H heads, R rows (T tokens of each sample), Y channels of a head, Z channels of its values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paper_repro.kernels.first_order import SecondOrder
from paper_repro.kernels.self_slot_attention.reference import rows_to_samples, samples_to_rows


class Observed(NamedTuple):
    """The observed columns, and the rows that read them."""

    query: Tensor
    """(B, H, R, Y)."""
    keys: Tensor
    """(B, H, T + lead, Y)."""
    values: Tensor
    """(B, H, T + lead, Z)."""
    lead: int
    scale: float


class Cotangents(NamedTuple):
    """What dq, dk and dv of the observed columns are multiplied with: a, b and d; None for zeros."""

    query: Tensor
    keys: Tensor | None
    values: Tensor | None


class OwnRows(NamedTuple):
    """What one's own column adds to the sums over a row, each (B, H, R, 1): ds, t, p t and p w."""

    ds: Tensor
    t: Tensor
    pt: Tensor
    pw: Tensor


class Curvature(NamedTuple):
    """The derivatives by G, q, k and v, without what the own column adds, and T and R (B, H, R, 1) of each row."""

    direction: Tensor | None
    query: Tensor | None
    keys: Tensor | None
    values: Tensor | None
    T: Tensor
    R: Tensor


@dataclass(frozen=True)
class Passes:
    """One way to go over the observed columns; results are in the inputs' dtype or wider.

    No tuple, as ``Setting``: torch.func takes those apart in every call.
    """

    forward: Callable[[Observed], tuple[Tensor, Tensor]]
    """o (B, H, R, Z) and lse (B, H, R, 1) of the observed columns alone."""
    gradient: Callable[[Observed, Tensor, Tensor, Tensor, tuple[bool, ...]], tuple[Tensor | None, ...]]
    """dq, dk and dv, those that are needed, given G (B, H, R, Z), and lse and D (B, H, R, 1) of all columns."""
    curvature: Callable[[Observed, Tensor, Tensor, Tensor, Cotangents, OwnRows | None, tuple[bool, ...]], Curvature]
    """The derivatives by G, q, k and v, those that are needed, given the same, and what the own column adds."""


@dataclass(frozen=True)
class Setting:
    """What is no tensor."""

    lead: int
    scale: float
    passes: Passes


def wide(tensor: Tensor) -> torch.dtype:
    """Return float32 for 16 bits, else the dtype."""
    return torch.promote_types(tensor.dtype, torch.float32)


def attend(
    passes: Passes,
    query: Tensor,
    own_key: Tensor | None,
    own_value: Tensor | None,
    keys: Tensor,
    values: Tensor,
    lead: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Compute o (N B, H, T, Z) and lse (N B, H, T), as ``kernels.self_slot_attention``; without own ones too."""
    rows = (None if tensor is None else samples_to_rows(tensor, keys) for tensor in (query, own_key, own_value))
    out, lse = Attention.apply(*rows, keys, values, Setting(lead, scale, passes))  # (B, H, N T, Z), (B, H, N T)
    return rows_to_samples(out, query), rows_to_samples(lse.unsqueeze(-1), query).squeeze(-1)


class Attention(SecondOrder):
    """o (B, H, R, Z) and lse (B, H, R) of q, own k, own v, keys and values; both or neither own ones are None."""

    @staticmethod
    def forward(
        query: Tensor,
        own_key: Tensor | None,
        own_value: Tensor | None,
        keys: Tensor,
        values: Tensor,
        setting: Setting,
    ) -> tuple[Tensor, Tensor]:
        scale = setting.scale
        out, lse = setting.passes.forward(Observed(query, keys, values, setting.lead, scale))
        if own_key is not None and own_value is not None:
            own = _dot(query, own_key) * scale  # (B, H, R, 1)
            out = torch.lerp(out, own_value.to(out.dtype), torch.sigmoid(own - lse).to(out.dtype))  # (B, H, R, Z)
            lse = torch.logaddexp(lse, own)
        return out.to(values.dtype), lse.squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.setting = inputs[5]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:5], *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients == (None, None):
            return (None,) * 6
        found = AttentionGradient.apply(*gradients, *ctx.saved_tensors, ctx.setting, ctx.needs_input_grad[:5])
        return *found, None


class AttentionGradient(SecondOrder):
    """The gradients of q, own k, own v, keys and values, those that are needed, of gradients of o and lse."""

    @staticmethod
    def forward(
        direction: Tensor | None,
        by_lse: Tensor | None,
        query: Tensor,
        own_key: Tensor | None,
        own_value: Tensor | None,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        lse: Tensor,
        setting: Setting,
        needs: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        G, lse, D = _given(direction, by_lse, out, lse)
        scale = setting.scale
        observed = Observed(query, keys, values, setting.lead, scale)
        wanted = needs[0], needs[3], needs[4]
        dquery, dkeys, dvalues = setting.passes.gradient(observed, G, lse, D, wanted)  # (B, H, R or T + lead, Y or Z)
        dkey = dvalue = None
        if own_key is not None and own_value is not None:
            own = _own(query, own_key, own_value, G, lse, D, scale)
            dquery = _added(dquery, (own.ds * scale, own_key))  # (B, H, R, Y)
            dkey = (own.ds * scale) * query if needs[1] else None  # (B, H, R, Y)
            dvalue = own.p * G if needs[2] else None  # (B, H, R, Z)
        return _as_given((dquery, dkey, dvalue, dkeys, dvalues), (query, own_key, own_value, keys, values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.setting = inputs[9]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:9])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * 11
        needs = ctx.needs_input_grad[:7]
        found = AttentionCurvature.apply(*cotangents, *ctx.saved_tensors, ctx.setting, needs)
        # What o and lse, which were kept, depend on is in the other derivatives.
        return *found, *(None for _ in range(4))


class AttentionCurvature(SecondOrder):
    """The derivatives of ``AttentionGradient`` along cotangents of its results; they have none themselves."""

    @staticmethod
    def forward(
        a: Tensor | None,
        own_b: Tensor | None,
        own_d: Tensor | None,
        b: Tensor | None,
        d: Tensor | None,
        direction: Tensor | None,
        by_lse: Tensor | None,
        query: Tensor,
        own_key: Tensor | None,
        own_value: Tensor | None,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        lse: Tensor,
        setting: Setting,
        needs: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        G, lse, D = _given(direction, by_lse, out, lse)
        a = torch.zeros_like(query) if a is None else a  # (B, H, R, Y)
        scale, curvature = setting.scale, setting.passes.curvature
        observed, along = Observed(query, keys, values, setting.lead, scale), Cotangents(a, b, d)
        wanted = needs[0], needs[2], needs[5], needs[6]
        if own_key is None or own_value is None:
            found = curvature(observed, G, lse, D, along, None, wanted)
            by_key = by_value = None
            by_direction, by_query = found.direction, found.query  # (B, H, R, Z), (B, H, R, Y)
        else:
            own = _own(query, own_key, own_value, G, lse, D, scale)
            t = _sum(_dot(a, own_key), None if own_b is None else _dot(query, own_b)) * scale  # (B, H, R, 1)
            w = torch.zeros_like(t) if own_d is None else _dot(G, own_d)  # (B, H, R, 1)
            rows = OwnRows(own.ds, t, own.p * t, own.p * w)
            found = curvature(observed, G, lse, D, along, rows, wanted)
            pu = own.p * (t - found.T)  # (B, H, R, 1)
            r = (own.ds * (t - found.T) + own.p * (w - found.R)) * scale  # (B, H, R, 1)
            ds = own.ds * scale
            by_direction = _added(found.direction, (pu, own_value), (own.p, own_d))  # (B, H, R, Z)
            by_query = _added(found.query, (r, own_key), (ds, own_b))  # (B, H, R, Y)
            by_key = (r * query).addcmul_(ds, a) if needs[3] else None  # (B, H, R, Y)
            by_value = pu * G if needs[4] else None  # (B, H, R, Z)
        T = found.T.squeeze(-1) if needs[1] else None  # (B, H, R)
        gradients = by_direction, T, by_query, by_key, by_value, found.keys, found.values
        return _as_given(gradients, (direction, by_lse, query, own_key, own_value, keys, values))


class _Own(NamedTuple):
    """The numbers of one's own column, (B, H, R, 1)."""

    p: Tensor
    ds: Tensor


def _own(q: Tensor, key: Tensor, value: Tensor, G: Tensor, lse: Tensor, D: Tensor, scale: float) -> _Own:
    p = torch.exp(_dot(q, key) * scale - lse)
    return _Own(p, p * (_dot(G, value) - D))


def _given(direction: Tensor | None, by_lse: Tensor | None, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return G (B, H, R, Z), lse and D (B, H, R, 1)."""
    if direction is None:
        direction, D = torch.zeros_like(out), torch.zeros_like(lse).unsqueeze(-1)
    else:
        D = _dot(direction, out)
    return direction, lse.unsqueeze(-1), D if by_lse is None else D - by_lse.unsqueeze(-1)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    """Return the products of rows, (B, H, R, 1), in float32 at least."""
    return (one.to(wide(one)) * two).sum(-1, keepdim=True)


def _sum(one: Tensor, two: Tensor | None) -> Tensor:
    return one if two is None else one + two


def _added(total: Tensor | None, *terms: tuple[Tensor, Tensor | None]) -> Tensor | None:
    for factor, rows in terms:
        if total is not None and rows is not None:
            total.addcmul_(factor, rows)
    return total


def _as_given(found: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return each in the dtype of what it is the gradient of; none where that was not given."""
    return tuple(
        None if tensor is None or like is None else tensor.to(like.dtype)
        for tensor, like in zip(found, given, strict=True)
    )
