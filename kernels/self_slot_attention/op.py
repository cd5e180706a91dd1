"""EBT's attention of candidates: each row reads what was observed before it, and itself as one more column.

Its gradient, and the gradient of that, are written by hand; the own column is one more, or absent.  With
s_ij = c q_i . k_j, p = softmax_j(s), G and g the gradients of o and lse, D_i = G_i . o_i - g_i, dp_ij = G_i . v_j,

    ds = p (dp - D),   dq = c ds k,   dk = c ds^T q,   dv = p^T G

Let a, b, d be the cotangents of dq, dk, dv, and t_ij = c (a_i . k_j + q_i . b_j), w_ij = G_i . d_j, T_i = sum_j p t,
u = t - T, R_i = sum_j (ds u + p w), r = ds u + p (w - R).  The derivatives of dq . a + dk . b + dv . d are

    by G: (p u) v + p d    by g: T    by v: (p u)^T G    by q: c (r k + ds b)    by k: c (r^T q + ds^T a)

Sums over j include one's own column.  Its numbers, one for each row, are made here; ``Passes`` go over the observed
ones, j <= i + lead: "closed_form" some rows of some heads at a time, never holding anything of the size T x T.

Legend: B sequences, N samples, H heads, T tokens, R = N T rows, Y channels of a head, Z channels of its values; of a
piece: h heads, m rows, and the n columns that they see.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paper_repro.kernels.dispatch import Shapes, Way, choose, closed_form_way, derivative_order, device_type, triton_way
from paper_repro.kernels.first_order import SecondOrder, WithGradient
from paper_repro.models import common
from paper_repro.models.common import rows_to_samples, samples_to_rows, wide


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


@dataclass(frozen=True)  # a tuple would be taken apart by torch.func in every call
class Passes:
    """One way to go over the observed columns; results are in the inputs' dtype or wider."""

    forward: Callable[[Observed], tuple[Tensor, Tensor]]
    """o (B, H, R, Z) and lse (B, H, R, 1) of the observed columns alone."""
    gradient: Callable[[Observed, Tensor, Tensor, Tensor, tuple[bool, ...]], tuple[Tensor | None, ...]]
    """dq, dk and dv, those that are needed, given G (B, H, R, Z), and lse and D (B, H, R, 1) of all columns."""
    curvature: Callable[[Observed, Tensor, Tensor, Tensor, Cotangents, OwnRows | None, tuple[bool, ...]], Curvature]
    """The derivatives by G, q, k and v, those that are needed, given the same, and what the own column adds."""


def attend(passes: Passes, tensors: tuple[Tensor | None, ...], lead: int, scale: float) -> Tensor:
    """Compute o (N B, H, T, Z) of the query, own keys and values, or None and None, keys and values."""
    query, keys = tensors[0], tensors[3]
    assert query is not None and keys is not None
    rows = (None if tensor is None else samples_to_rows(tensor, keys) for tensor in tensors[:3])
    out, _ = Attention.apply(*rows, *tensors[3:], lead, scale, passes)  # (B, H, N T, Z)
    return rows_to_samples(out, query)


class AttentionCurvature(SecondOrder):
    """The derivatives of ``AttentionGradient`` along cotangents of its results; they have none themselves.

    What o and lse depend on is in the other derivatives.
    """

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        a, own_b, own_d, b, d, G, query, own_key, own_value, keys, values, out, lse, *options, needs = given
        lead, scale, passes, _ = options
        a = torch.zeros_like(query) if a is None else a  # (B, H, R, Y)
        D, wanted = _dot(G, out), (needs[0], needs[1], needs[4], needs[5])
        observed, along = Observed(query, keys, values, lead, scale), Cotangents(a, b, d)
        if own_key is None:
            found = passes.curvature(observed, G, lse, D, along, None, wanted)
            by_key = by_value = None
            by_direction, by_query = found.direction, found.query  # (B, H, R, Z), (B, H, R, Y)
        else:
            p, ds = _own(query, own_key, own_value, G, lse, D, scale)
            t = _dot(a, own_key) * scale  # (B, H, R, 1)
            t = t if own_b is None else t + _dot(query, own_b) * scale
            w = torch.zeros_like(t) if own_d is None else _dot(G, own_d)  # (B, H, R, 1)
            found = passes.curvature(observed, G, lse, D, along, OwnRows(ds, t, p * t, p * w), wanted)
            pu = p * (t - found.T)  # (B, H, R, 1)
            r = (ds * (t - found.T) + p * (w - found.R)) * scale  # (B, H, R, 1)
            ds = ds * scale
            by_direction = _added(found.direction, (pu, own_value), (p, own_d))  # (B, H, R, Z)
            by_query = _added(found.query, (r, own_key), (ds, own_b))  # (B, H, R, Y)
            by_key = (r * query).addcmul_(ds, a) if needs[2] else None  # (B, H, R, Y)
            by_value = pu * G if needs[3] else None  # (B, H, R, Z)
        return _as_given((by_direction, by_query, by_key, by_value, found.keys, found.values), (G, *given[6:11]))


class AttentionGradient(WithGradient, SecondOrder):
    """The gradients of q, own k, own v, keys and values, those that are needed: of G, these tensors, o and lse."""

    gradient, num_results, selective = AttentionCurvature, 5, True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor | None, ...]:
        G, query, own_key, own_value, keys, values, out, lse, lead, scale, passes, needs = given
        D, wanted = _dot(G, out), (needs[0], needs[3], needs[4])
        observed = Observed(query, keys, values, lead, scale)
        dquery, dkeys, dvalues = passes.gradient(observed, G, lse, D, wanted)  # (B, H, R or T + lead, Y or Z)
        dkey = dvalue = None
        if own_key is not None:
            p, ds = _own(query, own_key, own_value, G, lse, D, scale)
            dquery = _added(dquery, (ds * scale, own_key))  # (B, H, R, Y)
            dkey = (ds * scale) * query if needs[1] else None  # (B, H, R, Y)
            dvalue = p * G if needs[2] else None  # (B, H, R, Z)
        return _as_given((dquery, dkey, dvalue, dkeys, dvalues), given[1:6])


class Attention(WithGradient, SecondOrder):
    """o (B, H, R, Z) of q, own k, own v, keys, values; both or neither own ones are None.  Keeps lse (B, H, R, 1)."""

    gradient, keeps_results, selective = AttentionGradient, True, True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:
        query, own_key, own_value, keys, values, lead, scale, passes = given
        out, lse = passes.forward(Observed(query, keys, values, lead, scale))
        if own_key is not None:
            own = _dot(query, own_key) * scale  # (B, H, R, 1)
            out = torch.lerp(out, own_value.to(out.dtype), torch.sigmoid(own - lse).to(out.dtype))  # (B, H, R, Z)
            lse = torch.logaddexp(lse, own)
        return out.to(values.dtype), lse


def _own(
    q: Tensor, key: Tensor, value: Tensor, G: Tensor, lse: Tensor, D: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return p and ds of one's own column, (B, H, R, 1)."""
    p = torch.exp(_dot(q, key) * scale - lse)
    return p, p * (_dot(G, value) - D)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    """Return the products of rows, (B, H, R, 1), in float32 at least."""
    return (one.to(wide(one)) * two).sum(-1, keepdim=True)


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


PIECE = 1 << 16
"""Scores of a piece per thread: 256 kB in float32."""
ROWS = 64
"""Tokens of a piece: fewer see fewer columns in vain, more repay the calls."""
LOG2_E = math.log2(math.e)
"""Torch computes powers of two many times faster than those of e where these are tiny."""


def forward(given: Observed) -> tuple[Tensor, Tensor]:
    """Compute o (B, H, N T, Z) and lse (B, H, N T, 1)."""
    pieces = _Pieces(given)
    out, lse = pieces.empty(given.values.shape[3]), pieces.empty(1)  # (B H, N, T, Z or 1)
    for piece in pieces:
        (scores,) = piece.space(1)
        piece.scores(scores)
        piece.hide_future(scores)
        largest = scores.amax(-1, keepdim=True)
        total = scores.sub_(largest).exp2_().sum(-1, keepdim=True)
        piece.write(out, torch.bmm(scores, piece.seen(pieces.values)).div_(total))
        piece.write(lse, total.log2_().add_(largest).div_(LOG2_E))
    return pieces.as_given(out), pieces.as_given(lse)


def gradient(given: Observed, G: Tensor, lse: Tensor, D: Tensor, needs: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    """Compute dq, dk and dv, those that are needed."""
    pieces = _Pieces(given)
    G, D, lse2 = pieces.by_row(G), pieces.by_row(D), pieces.by_row(lse * LOG2_E)  # (B H, N, T, Z or 1)
    dquery = pieces.empty(given.query.shape[3]) if needs[0] else None  # (B H, N, T, Y)
    dkeys = torch.empty_like(pieces.keys) if needs[1] else None  # (B H, T + lead, Y)
    dvalues = torch.empty_like(pieces.values) if needs[2] else None  # (B H, T + lead, Z)
    for piece in pieces:
        p, ds = piece.space(2)
        G_rows = piece.rows(G)  # (h, m, Z)
        piece.probabilities(lse2, p)
        torch.bmm(G_rows, piece.seen(pieces.values).mT, out=ds)
        ds.sub_(piece.rows(D)).mul_(p)
        if dquery is not None:
            piece.multiply(ds, piece.seen(pieces.keys), given.scale, dquery)
        if dkeys is not None:
            piece.add(dkeys, ds, piece.rows(pieces.query), given.scale)
        if dvalues is not None:
            piece.add(dvalues, p, G_rows)
    dquery = None if dquery is None else pieces.as_given(dquery)  # (B, H, N T, Y)
    return dquery, pieces.by_column(dkeys), pieces.by_column(dvalues)


def curvature(
    given: Observed,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    along: Cotangents,
    own: OwnRows | None,
    needs: tuple[bool, ...],
) -> Curvature:
    """Compute the derivatives by G, q, k and v, those that are needed, and T and R."""
    pieces, scale = _Pieces(given), given.scale
    G, D, lse2 = pieces.by_row(G), pieces.by_row(D), pieces.by_row(lse * LOG2_E)  # (B H, N, T, Z or 1)
    along_query = pieces.by_row(along.query)  # (B H, N, T, Y)
    along_keys, along_values = (None if found is None else found.flatten(0, 1) for found in along[1:])
    own = None if own is None else OwnRows(*(pieces.by_row(rows) for rows in own))
    by_G, by_query = pieces.empty(given.values.shape[3]), pieces.empty(given.query.shape[3])
    by_keys = torch.empty_like(pieces.keys) if needs[2] else None  # (B H, T + lead, Y)
    by_values = torch.empty_like(pieces.values) if needs[3] else None  # (B H, T + lead, Z)
    all_T, all_R = pieces.empty(1), pieces.empty(1)  # (B H, N, T, 1)
    for piece in pieces:
        q, k, v = piece.rows(pieces.query), piece.seen(pieces.keys), piece.seen(pieces.values)
        G_rows, a = piece.rows(G), piece.rows(along_query)  # (h, m, Z), (h, m, Y)
        p, ds, u, product = piece.space(4)
        piece.probabilities(lse2, p)
        torch.bmm(G_rows, v.mT, out=ds)
        ds.sub_(piece.rows(D)).mul_(p)
        torch.baddbmm(u, a, k.mT, beta=0, alpha=scale, out=u)
        if along_keys is not None:
            u.baddbmm_(q, piece.seen(along_keys).mT, alpha=scale)
        T = torch.mul(p, u, out=product).sum(-1, keepdim=True)  # (h, m, 1)
        if own is not None:
            T += piece.rows(own.pt)
        piece.write(all_T, T)
        pu = torch.mul(p, u.sub_(T), out=product)
        piece.multiply(pu, v, 1.0, by_G)
        if by_values is not None:
            piece.add(by_values, pu, G_rows)
        r = u.mul_(ds)
        if along_values is not None:
            d = piece.seen(along_values)  # (h, n, Z)
            piece.write(by_G, torch.baddbmm(piece.rows(by_G), p, d))
            r.addcmul_(p, torch.bmm(G_rows, d.mT, out=product))
        R = r.sum(-1, keepdim=True)  # (h, m, 1)
        if own is not None:
            R += piece.rows(own.ds) * (piece.rows(own.t) - T) + piece.rows(own.pw)
        piece.write(all_R, R)
        r.addcmul_(p, R, value=-1)
        piece.multiply(r, k, scale, by_query)
        if along_keys is not None:
            b = piece.seen(along_keys)  # (h, n, Y)
            piece.write(by_query, torch.baddbmm(piece.rows(by_query), ds, b, alpha=scale))
        if by_keys is not None:
            piece.add(by_keys, r, q, scale)
            piece.seen(by_keys).baddbmm_(ds.mT, a, alpha=scale)
    by_G, by_query, all_T, all_R = (pieces.as_given(found) for found in (by_G, by_query, all_T, all_R))
    return Curvature(by_G, by_query, pieces.by_column(by_keys), pieces.by_column(by_values), all_T, all_R)


PASSES = Passes(forward, gradient, curvature)


class _Piece:
    """Some heads, and some tokens of each sample, which see the first ``seeing`` columns."""

    def __init__(self, pieces: "_Pieces", heads: slice, tokens: slice) -> None:
        self.pieces, self.heads, self.tokens = pieces, heads, tokens
        self.seeing = tokens.stop + pieces.lead
        self.whole = tokens.stop - tokens.start == pieces.tokens

    def rows(self, by_row: Tensor) -> Tensor:
        """Return the rows (h, m, ...) of (B H, N, T, ...); a view where N is 1."""
        found = by_row[self.heads]
        return (found if self.whole else found[:, :, self.tokens]).flatten(1, 2)

    def seen(self, by_column: Tensor) -> Tensor:
        """Return the columns (h, n, ...) that the rows see of (B H, T + lead, ...)."""
        return by_column[self.heads] if self.whole else by_column[self.heads, : self.seeing]

    def write(self, by_row: Tensor, rows: Tensor) -> None:
        """Write the rows (h, m, ...) into (B H, N, T, ...)."""
        by_row[self.heads, :, self.tokens] = rows.unflatten(1, (by_row.shape[1], -1))

    def multiply(self, weights: Tensor, columns: Tensor, factor: float, by_row: Tensor) -> None:
        """Write factor * weights (h, m, n) @ columns (h, n, ...) into (B H, N, T, ...)."""
        out = self.rows(by_row) if self.whole else by_row.new_empty(*weights.shape[:2], columns.shape[2])
        torch.baddbmm(out, weights, columns, beta=0, alpha=factor, out=out)
        if not self.whole:
            self.write(by_row, out)

    def add(self, by_column: Tensor, weights: Tensor, rows: Tensor, factor: float = 1.0) -> None:
        """Add factor * weights^T (n, m) @ rows (h, m, ...) to (B H, T + lead, ...); the last tokens' write."""
        out = by_column[self.heads]
        if self.tokens.stop == self.pieces.tokens:
            torch.baddbmm(out, weights.mT, rows, beta=0, alpha=factor, out=out)
        else:
            out[:, : self.seeing].add_(torch.bmm(weights.mT, rows), alpha=factor)

    def space(self, count: int) -> list[Tensor]:
        """Return so many buffers (h, m, n)."""
        rows = self.pieces.samples * (self.tokens.stop - self.tokens.start)
        shape = self.heads.stop - self.heads.start, rows, self.seeing
        return [part[: shape[0] * shape[1] * shape[2]].view(shape) for part in self.pieces.buffers(count)]

    def scores(self, out: Tensor) -> None:
        """Write log2(e) s (h, m, n), those of columns after a row too."""
        q, k = self.rows(self.pieces.query), self.seen(self.pieces.keys)  # (h, m, Y), (h, n, Y)
        torch.baddbmm(out, q, k.mT, beta=0, alpha=self.pieces.scale * LOG2_E, out=out)

    def hide_future(self, scores: Tensor) -> None:
        """Make the scores (h, m, n) of columns after a row minus infinity."""
        width = self.tokens.stop - self.tokens.start
        last = scores.unflatten(1, (self.pieces.samples, width))[..., self.seeing - width :]
        last += self.pieces.future[:width, :width]

    def probabilities(self, lse2: Tensor, out: Tensor) -> None:
        """Write p (h, m, n), given log2(e) lse."""
        self.scores(out)
        out.sub_(self.rows(lse2)).exp2_()
        by_sample = out.unflatten(1, (self.pieces.samples, -1)) if self.pieces.samples > 1 else out
        by_sample.tril_(self.tokens.start + self.pieces.lead)


class _Pieces:
    """All pieces.  The last tokens come first: they see all columns, so what they write there needs no zeros before."""

    def __init__(self, given: Observed) -> None:
        self.given, self.scale, self.lead = given, given.scale, given.lead
        self.keys, self.values = given.keys.flatten(0, 1), given.values.flatten(0, 1)  # (B H, T + lead, Y or Z)
        self.heads, columns = self.keys.shape[:2]
        self.tokens = columns - given.lead
        self.samples = given.query.shape[2] // self.tokens
        self.query = self.by_row(given.query)  # (B H, N, T, Y)
        self.rows = min(self.tokens, ROWS)
        threads = torch.get_num_threads() if device_type(given.query) == "cpu" else 1
        longest = self.samples * self.rows * columns
        self.group = min(self.heads, max(1, PIECE * threads // longest))
        self._longest, self._buffers = self.group * longest, list[Tensor]()
        self.future = given.query.new_full((self.rows, self.rows), -torch.inf).triu_(1)

    def __iter__(self) -> Iterator[_Piece]:
        for first in range(0, self.heads, self.group):
            heads = slice(first, min(first + self.group, self.heads))
            for start in reversed(range(0, self.tokens, self.rows)):
                yield _Piece(self, heads, slice(start, min(start + self.rows, self.tokens)))

    def by_row(self, rows: Tensor) -> Tensor:
        """Return (B, H, N T, ...) as (B H, N, T, ...)."""
        return rows.flatten(0, 1).unflatten(1, (self.samples, self.tokens))

    def as_given(self, by_row: Tensor) -> Tensor:
        """Return (B H, N, T, ...) as (B, H, N T, ...)."""
        return by_row.view(*self.given.query.shape[:3], -1)

    def by_column(self, found: Tensor | None) -> Tensor | None:
        """Return (B H, T + lead, ...) as (B, H, T + lead, ...)."""
        return None if found is None else found.unflatten(0, self.given.keys.shape[:2])

    def empty(self, width: int) -> Tensor:
        return self.query.new_empty((self.heads, self.samples, self.tokens, width))

    def buffers(self, count: int) -> list[Tensor]:
        """Return so many buffers for the scores of the largest piece; they are made once."""
        while len(self._buffers) < count:
            self._buffers.append(self.query.new_empty(self._longest))
        return self._buffers[:count]


LEAST_SCORES = (1 << 16, 1 << 18, 1 << 20)
"""N B H T (T + lead), from which on "auto" takes the closed form on a CPU, without derivatives, with first and with
second ones: there it takes as long as the definition on one thread with Y = 64."""
WIDEST = 128
"""The fused kernels hold whole rows of heads in registers."""


def self_slot_attention(
    query: Tensor,
    own_key: Tensor,
    own_value: Tensor,
    keys: Tensor,
    values: Tensor,
    lead: int = 0,
    scale: float | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Compute o_i = sum_{j <= i + lead} p_ij v_j + p_i,own v_own,i, where p is the softmax over all these columns of

        s_ij = scale q_i . k_j,   s_i,own = scale q_i . k_own,i

    (Energy-Based Transformers, appendix C.6.)  N samples may share the observed keys and values of B sequences: row
    n B + b of ``query``, ``own_key`` and ``own_value`` is sample n of sequence b.

    "fused" (Triton) and "closed_form" (some rows at a time) have first and second derivatives in reverse mode; they
    keep o and lse alone.

    Args:
        query, own_key: (N B, H, T, Y).
        own_value: (N B, H, T, Z).
        keys: (B, H, T + lead, Y), of the observed columns.
        values: (B, H, T + lead, Z).
        lead: observed columns before the first token, which every row reads.
        scale: 1/sqrt(Y) if None.

    Returns:
        (N B, H, T, Z).
    """
    tensors = query, own_key, own_value, keys, values
    if not isinstance(lead, int) or lead < 0:
        raise ValueError(f"lead must be a whole number of at least 0, got {lead!r}")
    SHAPES.check(*tensors)
    if keys.shape[2] != query.shape[2] + lead or not len(keys) or len(query) % len(keys):
        raise ValueError(f"queries {tuple(query.shape)} do not fit keys {tuple(keys.shape)} and lead {lead}")
    order, width = derivative_order(*tensors), max(query.shape[3], values.shape[3])
    large = many_scores(query, keys, order)
    way = choose("self_slot_attention", WAYS, implementation, tensors, order=order, width=width, large=large)
    return way(*tensors, lead, 1 / math.sqrt(query.shape[3]) if scale is None else float(scale))  # (N B, H, T, Z)


def many_scores(query: Tensor, keys: Tensor, order: int) -> bool:
    """Return whether there are enough scores for the closed form, with derivatives up to the order."""
    return math.prod(query.shape[:3]) * keys.shape[2] >= LEAST_SCORES[min(order, 2)]


def fused_passes() -> Passes:
    from paper_repro.kernels.self_slot_attention import triton

    return Passes(triton.forward, triton.gradient, triton.curvature)


SHAPES = Shapes(query="R H T Y", own_key="R H T Y", own_value="R H T Z", keys="B H C Y", values="B H C Z")
WAYS: tuple[Way[Callable[..., Tensor]], ...] = (
    triton_way(lambda *given: attend(fused_passes(), given[:5], *given[5:]), order=2, widest=WIDEST, transforms=True),
    closed_form_way(lambda *given: attend(PASSES, given[:5], *given[5:]), order=2, auto_on=("cpu",), auto_large=True),
    Way("reference", common.self_slot_attention),
)
